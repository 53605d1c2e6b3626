// Attention.
#include "bind.h"
#include "attend.h"

namespace headrace {
namespace {

// The options that both directions of attention share.
struct AttendOptions {
    double slope;
    bool self_loops;
    double dropout;
    uint64_t seed;
    const std::optional<In1<int64_t>>&shift, &whole_rows;  // of rows that are part of a whole
    int64_t whole_entries;
};

// Words below this are dropped.
uint32_t dropped_words(double dropout) {
    if (!(dropout >= 0 && dropout < 1)) fail("dropout must be at least 0 and below 1");
    return static_cast<uint32_t>(dropout * 4294967296.0);
}

// Checks that an array holds elements, or sums of them, in this shape.
template <class Any>
auto* attend_array(const Any& a, const char* name, Element element, bool sums, std::initializer_list<int64_t> shape) {
    const Element wanted = !sums ? element : element == Element::f64 ? Element::f64 : Element::f32;
    bool ok = element_of(a, name) == wanted && a.ndim() == shape.size();
    for (size_t i = 0; ok && i < shape.size(); ++i) ok = static_cast<int64_t>(a.shape(i)) == shape.begin()[i];
    if (!ok) fail(name, " has the wrong shape or type for this x");
    return a.data();
}

Attention attention_of(const In& x, const In1<int64_t>& indptr, const In& indices, const std::optional<In>& source, const In& target,
                       const std::optional<In>& attention, const AttendOptions& options) {
    if (x.ndim() != 3 || !x.shape(1) || !x.shape(2)) fail("x must be [rows, heads, channels], with at least one head and channel");
    check_indptr(indptr);
    if (bool(source) == bool(attention)) fail("attention needs either `source` or `attention`");
    Attention a;
    a.element = element_of(x, "x");
    a.indptr = indptr.data();
    a.rows = length(indptr) - 1;
    a.indices = ids_of(indices, "indices");
    a.count = length(indices);
    a.columns = length(x);
    a.heads = static_cast<int64_t>(x.shape(1));
    a.channels = static_cast<int64_t>(x.shape(2));
    a.slope = options.slope;
    a.x = static_cast<const char*>(x.data());
    if (indptr.data()[0] != 0 || indptr.data()[a.rows] != a.count)
        fail("indptr must begin with 0 and end with the number of indices");
    if (a.count && a.columns == 0) fail("there are entries, but no rows for them to name");
    if (options.self_loops && a.rows > a.columns) fail("self_loops needs a row of x for each row of indptr");
    a.own = options.self_loops ? a.rows : 0;
    a.dropped = dropped_words(options.dropout);
    a.kept = 1 / (1 - options.dropout);
    a.key = stream_key(options.seed, 0, 0, Purpose::attend);
    if (bool(options.shift) != bool(options.whole_rows)) fail("shift and whole_rows go together");
    if (options.shift) {
        if (length(*options.shift) != a.rows || length(*options.whole_rows) != a.rows)
            fail("shift and whole_rows must have one element per row of indptr");
        a.shift = options.shift->data();
        a.whole_rows = options.whole_rows->data();
        check_count(options.whole_entries, "whole_entries");
        a.whole_count = options.whole_entries;
    }
    if (source) a.source = attend_array(*source, "source", a.element, true, {a.columns, a.heads});
    if (attention) a.attention = attend_array(*attention, "attention", a.element, true, {a.heads, a.channels});
    a.target = attention ? attend_array(target, "target", a.element, false, {a.rows, a.heads, a.channels})
                         : attend_array(target, "target", a.element, true, {a.rows, a.heads});
    return a;
}

void attend_into(const In& x, const In1<int64_t>& indptr, const In& indices, Out out, Out peak, std::optional<In> source,
                 const In& target, std::optional<In> attention, double slope, bool self_loops, double dropout, uint64_t seed,
                 int threads, std::optional<In1<int64_t>> shift, std::optional<In1<int64_t>> whole_rows, int64_t whole_entries) {
    const AttendOptions options{slope, self_loops, dropout, seed, shift, whole_rows, whole_entries};
    Attention a = attention_of(x, indptr, indices, source, target, attention, options);
    a.out = static_cast<char*>(attend_array(out, "out", a.element, false, {a.rows, a.heads, a.channels}));
    a.peak = attend_array(peak, "peak", a.element, true, {a.rows, 2, a.heads});
    check_apart({{"out", out}, {"peak", peak}},
                {{"x", x}, {"indptr", indptr}, {"indices", indices}, {"source", source}, {"target", target}, {"attention", attention},
                 {"shift", shift}, {"whole_rows", whole_rows}});
    nb::gil_scoped_release release;
    attend(a, threads);
}

void attend_gradient_into(const In& grad, const In& out, const In& peak, const In& x, const In1<int64_t>& indptr, const In& indices,
                          std::optional<In1<int64_t>> t_indptr, std::optional<In> t_indices, std::optional<In> t_position,
                          std::optional<In> source, const In& target, std::optional<In> attention, std::optional<Out> grad_x,
                          std::optional<Out> grad_source, std::optional<Out> grad_target, std::optional<Out> grad_attention,
                          double slope, bool self_loops, double dropout, uint64_t seed, int threads,
                          std::optional<In1<int64_t>> shift, std::optional<In1<int64_t>> whole_rows, int64_t whole_entries) {
    const AttendOptions options{slope, self_loops, dropout, seed, shift, whole_rows, whole_entries};
    Attention a = attention_of(x, indptr, indices, source, target, attention, options);
    const auto like_rows = {a.rows, a.heads, a.channels};
    a.grad = static_cast<const char*>(attend_array(grad, "grad", a.element, false, like_rows));
    a.out = static_cast<char*>(const_cast<void*>(attend_array(out, "out", a.element, false, like_rows)));
    a.peak = const_cast<void*>(attend_array(peak, "peak", a.element, true, {a.rows, 2, a.heads}));
    void* to_attention = nullptr;
    if (grad_target)
        a.grad_target = attention ? attend_array(*grad_target, "grad_target", a.element, false, like_rows)
                                  : attend_array(*grad_target, "grad_target", a.element, true, {a.rows, a.heads});
    if (grad_attention) {
        if (!attention) fail("grad_attention needs `attention`");
        to_attention = attend_array(*grad_attention, "grad_attention", a.element, true, {a.heads, a.channels});
    }
    Attention reverse = a;
    if (grad_x || grad_source) {
        if (!t_indptr || !t_indices || !t_position) fail("the gradients of x and source need the transpose");
        if (length(*t_indptr) != a.columns + 1) fail("t_indptr must be that of the transpose");
        if (length(*t_indices) != a.count || length(*t_position) != a.count) fail("the transpose must have as many entries");
        if (t_indptr->data()[0] != 0 || t_indptr->data()[a.columns] != a.count)
            fail("t_indptr must begin with 0 and end with the number of indices");
        if (a.count && a.rows == 0) fail("there are entries, but no rows for them to name");
        reverse.indptr = t_indptr->data();
        reverse.rows = a.columns;
        reverse.columns = a.rows;
        reverse.indices = ids_of(t_indices, "t_indices");
        reverse.position = ids_of(t_position, "t_position");
        if (grad_x)
            reverse.grad_x = static_cast<char*>(attend_array(*grad_x, "grad_x", a.element, false, {a.columns, a.heads, a.channels}));
        if (grad_source) {
            if (!source) fail("grad_source needs `source`");
            reverse.grad_source = attend_array(*grad_source, "grad_source", a.element, true, {a.columns, a.heads});
        }
    }
    check_apart({{"grad_x", grad_x}, {"grad_source", grad_source}, {"grad_target", grad_target}, {"grad_attention", grad_attention}},
                {{"grad", grad}, {"out", out}, {"peak", peak}, {"x", x}, {"indptr", indptr}, {"indices", indices},
                 {"t_indptr", t_indptr}, {"t_indices", t_indices}, {"t_position", t_position}, {"source", source},
                 {"target", target}, {"attention", attention}, {"shift", shift}, {"whole_rows", whole_rows}});
    nb::gil_scoped_release release;
    attend_gradient(a, reverse, to_attention, threads);
}

}  // namespace

void bind_attend(nb::module_& m) {
    m.def("attend", &attend_into, "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), "out"_a.noconvert(),
          "peak"_a.noconvert(), nb::kw_only(), "source"_a.none().noconvert(), "target"_a.noconvert(),
          "attention"_a.none().noconvert(), "slope"_a, "self_loops"_a, "dropout"_a, "seed"_a, "threads"_a,
          "shift"_a.noconvert() = nb::none(), "whole_rows"_a.noconvert() = nb::none(), "whole_entries"_a = 0);
    m.def("attend_gradient", &attend_gradient_into, "grad"_a.noconvert(), "out"_a.noconvert(), "peak"_a.noconvert(),
          "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), nb::kw_only(), "t_indptr"_a.none().noconvert(),
          "t_indices"_a.none().noconvert(), "t_position"_a.none().noconvert(), "source"_a.none().noconvert(),
          "target"_a.noconvert(), "attention"_a.none().noconvert(), "grad_x"_a.none().noconvert(),
          "grad_source"_a.none().noconvert(), "grad_target"_a.none().noconvert(), "grad_attention"_a.none().noconvert(),
          "slope"_a, "self_loops"_a, "dropout"_a, "seed"_a, "threads"_a, "shift"_a.noconvert() = nb::none(),
          "whole_rows"_a.noconvert() = nb::none(), "whole_entries"_a = 0);
}

}  // namespace headrace
