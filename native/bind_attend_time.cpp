// Attention over events.
#include "bind.h"
#include "attend_time.h"

namespace headrace {
namespace {

template <class Any>
auto* time_array(const Any& a, const char* name, Element element, std::initializer_list<int64_t> shape) {
    bool ok = element_of(a, name) == element && a.ndim() == shape.size();
    for (size_t i = 0; ok && i < shape.size(); ++i) ok = static_cast<int64_t>(a.shape(i)) == shape.begin()[i];
    if (!ok) fail(name, " has the wrong shape or type for this x");
    return a.data();
}

struct TimeInputs {
    const In& query;
    const In1<int64_t>& indptr;
    const In &indices, &dt, &x, &weight, &bias;
    const std::optional<In>&edge_x, &edge_id;
    double slope, dropout;
    uint64_t seed;
};

TimeAttention attention_of(const TimeInputs& given) {
    check_indptr(given.indptr);
    check_matrix(given.x, "x");
    TimeAttention a;
    a.element = element_of(given.x, "x");
    if (a.element != Element::f32 && a.element != Element::f64) fail("x must be float32 or float64");
    a.indptr = given.indptr.data();
    a.rows = length(given.indptr) - 1;
    a.indices = ids_of(given.indices, "indices");
    a.count = length(given.indices);
    a.columns = length(given.x);
    a.channels = static_cast<int64_t>(given.x.shape(1));
    a.x = given.x.data();
    if (given.indptr.data()[0] != 0 || given.indptr.data()[a.rows] > a.count)
        fail("indptr must begin with 0 and end with at most the number of indices");
    check_vector(given.weight, "time_weight");
    a.times = length(given.weight);
    a.weight = time_array(given.weight, "time_weight", a.element, {a.times});
    a.bias = time_array(given.bias, "time_bias", a.element, {a.times});
    a.dt = time_array(given.dt, "dt", a.element, {a.count});
    if (given.edge_x) {
        check_matrix(*given.edge_x, "edge_x");
        a.edges = length(*given.edge_x);
        a.edge_channels = static_cast<int64_t>(given.edge_x->shape(1));
        a.edge_x = time_array(*given.edge_x, "edge_x", a.element, {a.edges, a.edge_channels});
        a.edge_id = ids_of(given.edge_id, "edge_id");
        if (given.edge_id ? length(*given.edge_id) != a.count : a.edges != a.count) fail("edge_x must have a row per entry, or edge_id an id");
    }
    if (given.query.ndim() != 3 || !given.query.shape(0) || !a.width()) fail("query must be [heads, rows, columns], with one of each at least");
    a.heads = static_cast<int64_t>(given.query.shape(0));
    a.query = time_array(given.query, "query", a.element, {a.heads, a.rows, a.width()});
    if (!(given.slope > 0)) fail("slope must be above 0");
    a.slope = given.slope;
    if (!(given.dropout >= 0 && given.dropout < 1)) fail("dropout must be at least 0 and below 1");
    a.dropped = static_cast<uint32_t>(given.dropout * 4294967296.0);
    a.kept = 1 / (1 - given.dropout);
    a.key = stream_key(given.seed, 0, 0, Purpose::attend);
    return a;
}

void attend_time_into(const In& query, const In1<int64_t>& indptr, const In& indices, const In& dt, const In& x, const In& weight,
                      const In& bias, std::optional<In> edge_x, std::optional<In> edge_id, Out out, Out score, Out peak,
                      double slope, double dropout, uint64_t seed, int threads) {
    TimeAttention a = attention_of({query, indptr, indices, dt, x, weight, bias, edge_x, edge_id, slope, dropout, seed});
    a.out = time_array(out, "out", a.element, {a.heads, a.rows, a.width()});
    a.score = time_array(score, "score", a.element, {a.count, a.heads});
    a.peak = time_array(peak, "peak", a.element, {a.rows, 2, a.heads});
    check_apart({{"out", out}, {"score", score}, {"peak", peak}},
                {{"query", query}, {"indptr", indptr}, {"indices", indices}, {"dt", dt}, {"x", x}, {"time_weight", weight},
                 {"time_bias", bias}, {"edge_x", edge_x}, {"edge_id", edge_id}});
    nb::gil_scoped_release release;
    attend_time(a, threads);
}

void attend_time_gradient_into(const In& grad, const In& out, const In& score, const In& peak, const In& query,
                               const In1<int64_t>& indptr, const In& indices, const In& dt, const In& x, const In& weight,
                               const In& bias, std::optional<In> edge_x, std::optional<In> edge_id,
                               std::optional<In1<int64_t>> t_indptr, std::optional<In> t_indices, std::optional<In> t_position,
                               Out grad_query, std::optional<Out> grad_x, std::optional<Out> grad_time, double slope,
                               double dropout, uint64_t seed, int threads) {
    TimeAttention a = attention_of({query, indptr, indices, dt, x, weight, bias, edge_x, edge_id, slope, dropout, seed});
    const auto like_query = {a.heads, a.rows, a.width()};
    a.grad = time_array(grad, "grad", a.element, like_query);
    a.out = const_cast<void*>(time_array(out, "out", a.element, like_query));
    a.score = const_cast<void*>(time_array(score, "score", a.element, {a.count, a.heads}));
    a.peak = const_cast<void*>(time_array(peak, "peak", a.element, {a.rows, 2, a.heads}));
    a.grad_query = time_array(grad_query, "grad_query", a.element, like_query);
    void* time = grad_time ? time_array(*grad_time, "grad_time", a.element, {2, a.times}) : nullptr;
    if (grad_x) {
        if (!t_indptr || !t_indices || !t_position) fail("the gradient of x needs the transpose");
        if (length(*t_indptr) != a.columns + 1) fail("t_indptr must be that of the transpose");
        if (length(*t_indices) != length(*t_position) || length(*t_indices) > a.count) fail("the transpose must have the same entries");
        if (t_indptr->data()[0] != 0 || t_indptr->data()[a.columns] != length(*t_indices))
            fail("t_indptr must begin with 0 and end with the number of entries");
        a.t_indptr = t_indptr->data();
        a.t_indices = ids_of(t_indices, "t_indices");
        a.t_position = ids_of(t_position, "t_position");
        a.grad_x = time_array(*grad_x, "grad_x", a.element, {a.columns, a.channels});
    }
    check_apart({{"grad_query", grad_query}, {"grad_x", grad_x}, {"grad_time", grad_time}},
                {{"grad", grad}, {"out", out}, {"score", score}, {"peak", peak}, {"query", query}, {"indptr", indptr},
                 {"indices", indices}, {"dt", dt}, {"x", x}, {"time_weight", weight}, {"time_bias", bias}, {"edge_x", edge_x},
                 {"edge_id", edge_id}, {"t_indptr", t_indptr}, {"t_indices", t_indices}, {"t_position", t_position}});
    nb::gil_scoped_release release;
    attend_time_gradient(a, time, threads);
}

}  // namespace

void bind_attend_time(nb::module_& m) {
    m.def("attend_time", &attend_time_into, "query"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "dt"_a.noconvert(), "x"_a.noconvert(), "time_weight"_a.noconvert(), "time_bias"_a.noconvert(),
          "edge_x"_a.none().noconvert(), "edge_id"_a.none().noconvert(), nb::kw_only(), "out"_a.noconvert(),
          "score"_a.noconvert(), "peak"_a.noconvert(), "slope"_a, "dropout"_a, "seed"_a, "threads"_a);
    m.def("attend_time_gradient", &attend_time_gradient_into, "grad"_a.noconvert(), "out"_a.noconvert(), "score"_a.noconvert(),
          "peak"_a.noconvert(), "query"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), "dt"_a.noconvert(),
          "x"_a.noconvert(), "time_weight"_a.noconvert(), "time_bias"_a.noconvert(), "edge_x"_a.none().noconvert(),
          "edge_id"_a.none().noconvert(), nb::kw_only(), "t_indptr"_a.none().noconvert(), "t_indices"_a.none().noconvert(),
          "t_position"_a.none().noconvert(), "grad_query"_a.noconvert(), "grad_x"_a.none().noconvert(),
          "grad_time"_a.none().noconvert(), "slope"_a, "dropout"_a, "seed"_a, "threads"_a);
}

}  // namespace headrace
