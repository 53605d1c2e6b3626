// The one place where Python and the kernels meet: arrays come in by DLPack or the buffer protocol without copies,
// are checked, and the GIL is released before any work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <memory>
#include <optional>
#include <variant>

#include "aggregate.h"
#include "attend.h"
#include "common.h"
#include "csr.h"
#include "dropout.h"
#include "gather.h"
#include "generate.h"
#include "heap.h"
#include "limits.h"
#include "pool.h"
#include "sample.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace headrace;

namespace {

using In = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;
using Out = nb::ndarray<nb::device::cpu, nb::c_contig>;
template <class T>
using In1 = nb::ndarray<const T, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
template <class T>
using Out1 = nb::ndarray<T, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
template <class T>
using Made = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class... Parts>
[[noreturn]] void fail(Parts... parts) {
    std::string text;
    ((text += parts), ...);
    throw nb::value_error(text.c_str());
}

template <class Any>
bool is_int(const Any& a, int bits) {
    return a.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) && a.dtype().bits == bits;
}

template <class Any>
int64_t length(const Any& a) {
    return static_cast<int64_t>(a.shape(0));
}

void check_vector(const In& a, const char* name) {
    if (a.ndim() != 1) fail(name, " must have one dimension, not ", std::to_string(a.ndim()));
}

// Calls body with a typed pointer to ids, which may be int32 or int64.
template <class Body>
auto with_ids(const In& a, const char* name, Body body) {
    check_vector(a, name);
    if (is_int(a, 32)) return body(static_cast<const int32_t*>(a.data()));
    if (is_int(a, 64)) return body(static_cast<const int64_t*>(a.data()));
    fail(name, " must be int32 or int64");
}

Ids ids_of(const std::optional<In>& a, const char* name) {
    if (!a) return {};
    return with_ids(*a, name, [&](const auto* data) { return Ids{data, sizeof(*data) == 8}; });
}

template <class T>
Made<T> made(Array<T> array) {
    auto* held = new Array<T>(std::move(array));
    nb::capsule owner(held, [](void* p) noexcept { delete static_cast<Array<T>*>(p); });
    return Made<T>(held->data(), {static_cast<size_t>(held->size())}, owner);
}

struct Held {  // a pool buffer on its way out to Python: returned when the last array over it dies
    std::shared_ptr<Pool> pool;
    void* memory;
};

template <class T>
Made<T> made(Buffer buffer, int64_t size) {
    auto* held = new Held{buffer.pool(), nullptr};
    held->memory = buffer.detach();
    nb::capsule owner(held, [](void* p) noexcept {
        auto* h = static_cast<Held*>(p);
        h->pool->release(h->memory);
        delete h;
    });
    return Made<T>(static_cast<T*>(held->memory), {static_cast<size_t>(size)}, owner);
}

void check_indptr(const In1<int64_t>& indptr) {
    if (indptr.shape(0) < 1) fail("indptr must hold at least one element");
}

template <class Id, class Position>
nb::tuple csr_tuple(Csr<Id, Position> csr, bool positions) {
    nb::object where = nb::none();
    if (positions) where = nb::cast(made(std::move(csr.position)));
    return nb::make_tuple(made(std::move(csr.indptr)), made(std::move(csr.indices)), where);
}

nb::tuple range_of(const In& ids, int threads) {
    return with_ids(ids, "ids", [&](const auto* data) {
        const auto range = [&] {
            nb::gil_scoped_release release;
            return id_range(data, length(ids), threads);
        }();
        return nb::make_tuple(static_cast<int64_t>(range.least), static_cast<int64_t>(range.most));
    });
}

template <class T, class Index, class Position>
nb::tuple build_typed(const T* src, const T* dst, int64_t edges, const BuildOptions& options) {
    auto csr = [&] {
        nb::gil_scoped_release release;
        return build_csr<T, Index, Position>(src, dst, edges, options);
    }();
    return csr_tuple(std::move(csr), options.positions);
}

nb::tuple build(const In& src, const In& dst, int64_t num_nodes, bool wide_index, bool undirected, bool deduplicate,
                const std::string& self_loops, bool positions, int threads) {
    SelfLoops loops;
    if (self_loops == "keep") loops = SelfLoops::keep;
    else if (self_loops == "add") loops = SelfLoops::add;
    else if (self_loops == "drop") loops = SelfLoops::drop;
    else fail("self_loops must be 'keep', 'add' or 'drop', not '", self_loops, "'");
    if (num_nodes < 0) fail("num_nodes must not be negative");
    if (!wide_index && num_nodes > INT32_MAX) fail("num_nodes needs int64 indices");
    return with_ids(src, "src", [&](const auto* s) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(s)>>;
        check_vector(dst, "dst");
        if (!is_int(dst, sizeof(T) * 8)) fail("src and dst must have one integer type");
        if (src.shape(0) != dst.shape(0)) fail("src and dst must have one length");
        const T* d = static_cast<const T*>(dst.data());
        const BuildOptions options{num_nodes, undirected, deduplicate, positions, loops, threads};
        const int64_t edges = length(src);
        const bool wide_position = edges > INT32_MAX;
        if (wide_index)
            return wide_position ? build_typed<T, int64_t, int64_t>(s, d, edges, options)
                                 : build_typed<T, int64_t, int32_t>(s, d, edges, options);
        return wide_position ? build_typed<T, int32_t, int64_t>(s, d, edges, options)
                             : build_typed<T, int32_t, int32_t>(s, d, edges, options);
    });
}

nb::tuple transpose(const In1<int64_t>& indptr, const In& indices, int64_t columns, bool positions, int threads) {
    check_indptr(indptr);
    if (columns < 0) fail("columns must not be negative");
    return with_ids(indices, "indices", [&](const auto* data) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        const int64_t rows = length(indptr) - 1;
        const auto run = [&]<class Position>(Position) {
            auto csr = [&] {
                nb::gil_scoped_release release;
                check_csr(indptr.data(), data, rows, length(indices), columns, threads);
                if (sizeof(T) == 4) require(rows <= INT32_MAX, "rows need int64 indices");
                return transpose_csr<T, Position>(indptr.data(), data, rows, columns, positions, threads);
            }();
            return csr_tuple(std::move(csr), positions);
        };
        return length(indices) > INT32_MAX ? run(int64_t{}) : run(int32_t{});
    });
}

void check(const In1<int64_t>& indptr, const In& indices, int64_t columns, int threads) {
    check_indptr(indptr);
    with_ids(indices, "indices", [&](const auto* data) {
        nb::gil_scoped_release release;
        check_csr(indptr.data(), data, length(indptr) - 1, length(indices), columns, threads);
    });
}

void expand(const In1<int64_t>& indptr, const In& indices,
            nb::ndarray<int64_t, nb::ndim<2>, nb::device::cpu, nb::c_contig> out, int threads) {
    check_indptr(indptr);
    if (out.shape(0) != 2 || static_cast<int64_t>(out.shape(1)) != length(indices)) fail("out must be [2, entries]");
    with_ids(indices, "indices", [&](const auto* data) {
        nb::gil_scoped_release release;
        const int64_t rows = length(indptr) - 1;
        check_csr(indptr.data(), data, rows, length(indices), INT64_MAX, threads);
        expand_csr(indptr.data(), data, rows, out.data(), out.data() + length(indices), threads);
    });
}

// ---- pool and gather

Made<uint8_t> pool_empty(const std::shared_ptr<Pool>& pool, int64_t bytes) {
    if (bytes < 0) fail("bytes must not be negative");
    return made<uint8_t>(Buffer(pool, static_cast<size_t>(bytes)), bytes);
}

nb::dict pool_stats(const Pool& pool) {
    const PoolStats s = pool.stats();
    nb::dict d;
    d["limit"] = s.limit, d["idle"] = s.idle, d["in_use"] = s.in_use, d["peak"] = s.peak;
    d["hits"] = s.hits, d["misses"] = s.misses;
    return d;
}

template <class Any>
int64_t element_size(const Any& a) {
    return a.dtype().bits * a.dtype().lanes / 8;
}

template <class Any>
int64_t row_bytes(const Any& a) {
    int64_t bytes = element_size(a);
    for (size_t i = 1; i < a.ndim(); ++i) bytes *= static_cast<int64_t>(a.shape(i));
    return bytes;
}

void gather(const In& rows, const In& ids, Out out, int threads) {
    if (rows.ndim() < 1 || out.ndim() != rows.ndim()) fail("out must have as many dimensions as rows");
    if (row_bytes(out) != row_bytes(rows) || out.dtype() != rows.dtype()) fail("out must have rows like those of x");
    with_ids(ids, "ids", [&](const auto* data) {
        if (out.shape(0) != ids.shape(0)) fail("out must have one row per id");
        nb::gil_scoped_release release;
        gather_rows(static_cast<const char*>(rows.data()), length(rows), row_bytes(rows), data,
                    length(ids), static_cast<char*>(out.data()), threads);
    });
}

// ---- aggregate

template <class Any>
Element element_of(const Any& a, const char* name) {
    const auto code = static_cast<nb::dlpack::dtype_code>(a.dtype().code);
    const int bits = a.dtype().bits;
    if (code == nb::dlpack::dtype_code::Float && bits == 32) return Element::f32;
    if (code == nb::dlpack::dtype_code::Float && bits == 64) return Element::f64;
    if (code == nb::dlpack::dtype_code::Float && bits == 16) return Element::f16;
    if (code == nb::dlpack::dtype_code::Bfloat && bits == 16) return Element::bf16;
    fail(name, " must be float32, float64, float16 or bfloat16");
}

const void* coefficients(const std::optional<In>& a, Element element, int64_t size, const char* name) {
    if (!a) return nullptr;
    check_vector(*a, name);
    const int bits = element == Element::f64 ? 64 : 32;
    if (a->dtype().code != static_cast<uint8_t>(nb::dlpack::dtype_code::Float) || a->dtype().bits != bits)
        fail(name, " must be float", std::to_string(bits), " for these rows");
    if (length(*a) != size) fail(name, " must have ", std::to_string(size), " elements");
    return a->data();
}

void check_matrix(const In& a, const char* name) {
    if (a.ndim() != 2) fail(name, " must have two dimensions");
}

// Describes the entries to the kernels, which check every index before they follow it.
Entries entries_of(const In& x, const In1<int64_t>& indptr, const In& indices, const std::optional<In>& ids,
                   const std::optional<In>& weight, const std::optional<In>& position, const std::optional<In>& scale) {
    check_matrix(x, "x");
    check_indptr(indptr);
    Entries e;
    e.element = element_of(x, "x");
    e.indptr = indptr.data();
    e.rows = length(indptr) - 1;
    e.indices = ids_of(indices, "indices");
    e.count = length(indices);
    e.ids = ids_of(ids, "ids");
    e.position = ids_of(position, "position");
    e.x = static_cast<const char*>(x.data());
    e.x_rows = length(x);
    e.columns = ids ? length(*ids) : length(x);
    e.width = static_cast<int64_t>(x.shape(1));
    e.x_stride = row_bytes(x);
    if (indptr.data()[0] < 0 || indptr.data()[e.rows] > e.count)  // within, for it may be a range of a graph's rows
        fail("indptr must lie between 0 and the number of indices");
    if (e.count && (e.columns == 0 || e.x_rows == 0)) fail("there are entries, but no rows for them to name");
    if (position && length(*position) != e.count) fail("position must have one element per index");
    if (position && !weight) e.position = {};
    e.weight = coefficients(weight, e.element, e.count, "weight");
    e.scale = coefficients(scale, e.element, e.columns, "scale");
    return e;
}

void aggregate_into(const In& x, const In1<int64_t>& indptr, const In& indices, Out out, const std::string& reduce,
                    std::optional<In> ids, std::optional<In> weight, std::optional<In> position,
                    std::optional<In> scale, std::optional<Out> where, int threads) {
    Reduce how;
    if (reduce == "sum") how = Reduce::sum;
    else if (reduce == "mean") how = Reduce::mean;
    else if (reduce == "max") how = Reduce::max;
    else fail("reduce must be 'sum', 'mean' or 'max', not '", reduce, "'");
    const Entries e = entries_of(x, indptr, indices, ids, weight, position, scale);
    if (out.ndim() != 2 || length(out) != e.rows || static_cast<int64_t>(out.shape(1)) != e.width ||
        out.dtype() != x.dtype())
        fail("out must have one row per row of indptr, with the width and type of x");
    if (how == Reduce::max && (!where || !is_int(*where, 32) || where->size() != out.size()))
        fail("max needs `where`, int32, of the shape of out");
    nb::gil_scoped_release release;
    aggregate(e, how, static_cast<char*>(out.data()), where ? static_cast<int32_t*>(where->data()) : nullptr, threads);
}

void max_gradient_into(const In& grad, const In1<int64_t>& indptr, const In& indices, const In& position,
                       const In1<int64_t>& forward, const In& where, Out out, std::optional<In> weight, int threads) {
    Entries e = entries_of(grad, indptr, indices, std::nullopt, weight, position, std::nullopt);
    e.position = ids_of(position, "position");
    if (length(forward) != length(grad) + 1) fail("forward must be the indptr that grad has rows for");
    if (!is_int(where, 32) || where.size() != grad.size()) fail("where must be int32, of the shape of grad");
    if (out.ndim() != 2 || length(out) != e.rows || static_cast<int64_t>(out.shape(1)) != e.width ||
        out.dtype() != grad.dtype())
        fail("out must have one row per row of indptr, with the width and type of grad");
    nb::gil_scoped_release release;
    max_gradient(e, forward.data(), static_cast<const int32_t*>(where.data()), static_cast<char*>(out.data()), threads);
}

void weight_gradient_into(const In& x, const In1<int64_t>& indptr, const In& indices, const In& grad, Out out,
                          std::optional<In> ids, std::optional<In> row_scale, std::optional<In> where, int threads) {
    const Entries e = entries_of(x, indptr, indices, ids, std::nullopt, std::nullopt, std::nullopt);
    check_matrix(grad, "grad");
    if (length(grad) != e.rows || static_cast<int64_t>(grad.shape(1)) != e.width || grad.dtype() != x.dtype())
        fail("grad must have one row per row of indptr, with the width and type of x");
    const void* scale = coefficients(row_scale, e.element, e.rows, "row_scale");
    coefficients(nb::cast<In>(nb::cast(out)), e.element, length(indices), "out");
    if (where && (!is_int(*where, 32) || where->size() != grad.size())) fail("where must be int32, of the shape of grad");
    nb::gil_scoped_release release;
    weight_gradient(e, static_cast<const char*>(grad.data()), scale,
                    where ? static_cast<const int32_t*>(where->data()) : nullptr, out.data(), threads);
}

// ---- dropout

void dropout_into(const In& x, Out out, uint64_t seed, uint32_t dropped, double scale, bool relu, std::optional<In> gate,
                  int threads) {
    const Element element = element_of(x, "x");
    if (out.size() != x.size() || out.dtype() != x.dtype()) fail("out must have the size and type of x");
    if (gate && (gate->size() != x.size() || gate->dtype() != x.dtype())) fail("gate must have the size and type of x");
    if (dropped >= 1u << 16) fail("dropped must be below 65536");
    const DropoutJob job{stream_key(seed, 0, 0, Purpose::dropout), dropped, relu, scale, x.data(), out.data()};
    nb::gil_scoped_release release;
    dropout(element, job, gate ? gate->data() : nullptr, static_cast<int64_t>(x.size()), threads);
}

// ---- attend

// The options that both directions of attention share.
struct AttendOptions {
    double slope;
    bool self_loops;
    double dropout;
    uint64_t seed;
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
    if (source) a.source = attend_array(*source, "source", a.element, true, {a.columns, a.heads});
    if (attention) a.attention = attend_array(*attention, "attention", a.element, true, {a.heads, a.channels});
    a.target = attention ? attend_array(target, "target", a.element, false, {a.rows, a.heads, a.channels})
                         : attend_array(target, "target", a.element, true, {a.rows, a.heads});
    return a;
}

void attend_into(const In& x, const In1<int64_t>& indptr, const In& indices, Out out, Out peak, std::optional<In> source,
                 const In& target, std::optional<In> attention, double slope, bool self_loops, double dropout, uint64_t seed,
                 int threads) {
    Attention a = attention_of(x, indptr, indices, source, target, attention, {slope, self_loops, dropout, seed});
    a.out = static_cast<char*>(attend_array(out, "out", a.element, false, {a.rows, a.heads, a.channels}));
    a.peak = attend_array(peak, "peak", a.element, true, {a.rows, 2, a.heads});
    nb::gil_scoped_release release;
    attend(a, threads);
}

void attend_gradient_into(const In& grad, const In& out, const In& peak, const In& x, const In1<int64_t>& indptr, const In& indices,
                          std::optional<In1<int64_t>> t_indptr, std::optional<In> t_indices, std::optional<In> t_position,
                          std::optional<In> source, const In& target, std::optional<In> attention, std::optional<Out> grad_x,
                          std::optional<Out> grad_source, std::optional<Out> grad_target, std::optional<Out> grad_attention,
                          double slope, bool self_loops, double dropout, uint64_t seed, int threads) {
    Attention a = attention_of(x, indptr, indices, source, target, attention, {slope, self_loops, dropout, seed});
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
    nb::gil_scoped_release release;
    attend_gradient(a, reverse, to_attention, threads);
}

void attend_mask_into(nb::ndarray<bool, nb::ndim<2>, nb::device::cpu, nb::c_contig> mask, double dropout, uint64_t seed, int threads) {
    const uint32_t dropped = dropped_words(dropout);
    const PhiloxKey key = stream_key(seed, 0, 0, Purpose::attend);
    nb::gil_scoped_release release;
    attend_mask(key, dropped, length(mask), static_cast<int64_t>(mask.shape(1)), mask.data(), threads);
}

// ---- sample

class PySampler {
public:
    PySampler(In1<int64_t> indptr, In indices, std::vector<int64_t> fanouts, bool replace, bool hash)
        : indptr_(std::move(indptr)), indices_(std::move(indices)) {
        check_indptr(indptr_);
        with_ids(indices_, "indices", [&](const auto* data) {
            using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
            sampler_.template emplace<std::unique_ptr<Sampler<T>>>(
                std::make_unique<Sampler<T>>(indptr_.data(), data, length(indptr_) - 1, length(indices_),
                                             std::move(fanouts), replace, hash));
        });
    }

    nb::tuple sample(const In1<int64_t>& seeds, const std::shared_ptr<Pool>& pool, uint64_t seed, uint32_t epoch,
                     uint64_t batch, bool positions, int threads) {
        const SampleRequest request{seeds.data(), length(seeds), seed, epoch, batch, positions, threads};
        return std::visit(
            [&](auto& sampler) {
                using T = typename std::remove_reference_t<decltype(*sampler)>::Id_;
                SampleResult r = [&] {
                    nb::gil_scoped_release release;
                    return sampler->sample(request, pool);
                }();
                int64_t nodes = 0, edges = 0, rows = 0;
                for (size_t h = 0; h < r.node_counts.size(); ++h) {
                    nodes += r.node_counts[h];
                    if (h + 1 < r.node_counts.size()) rows = nodes;
                }
                for (int64_t e : r.edge_counts) edges += e;
                nb::object where = nb::none();
                if (positions) where = nb::cast(made<int64_t>(std::move(r.positions), edges));
                return nb::make_tuple(made<T>(std::move(r.nodes), nodes), made<int64_t>(std::move(r.indptr), rows + 1),
                                      made<int32_t>(std::move(r.indices), edges), where, r.node_counts, r.edge_counts);
            },
            sampler_);
    }

    int64_t workspace_bytes() const {
        return std::visit([](const auto& s) { return s->workspace_bytes(); }, sampler_);
    }

private:
    In1<int64_t> indptr_;
    In indices_;
    std::variant<std::unique_ptr<Sampler<int32_t>>, std::unique_ptr<Sampler<int64_t>>> sampler_;
};

// ---- generate

Made<double> weights(uint64_t seed, double exponent, double most, int64_t nodes, int threads) {
    if (nodes < 0) fail("nodes must not be negative");
    Array<double> out(nodes);
    {
        nb::gil_scoped_release release;
        power_law_weights(seed, exponent, most, nodes, out.data(), threads);
    }
    return made(std::move(out));
}

nb::tuple candidates(const In1<double>& cumulative, const In1<int64_t>& class_ends, const In1<int32_t>& class_of,
                     int64_t block, double within_block, double within_class, double mean_degree, uint64_t seed,
                     uint32_t round, double wanted, bool undirected, bool wide, int threads) {
    const int64_t nodes = length(class_of);
    if (nodes < 2) fail("a random graph needs at least two nodes");
    if (length(cumulative) != nodes + 1) fail("cumulative must have one element more than class_of");
    if (block < 1) fail("block must be positive");
    for (int64_t i = 0; i < nodes; ++i)  // also false for NaN
        if (!(cumulative.data()[i] <= cumulative.data()[i + 1])) fail("cumulative must not fall");
    if (cumulative.data()[0] != 0.0 || !std::isfinite(cumulative.data()[nodes]) || !(wanted >= 0 && wanted < 1e15))
        fail("cumulative must begin with 0 and be finite, and wanted must be a count");
    for (int64_t c = 0; c + 1 < length(class_ends); ++c)
        if (class_ends.data()[c] > class_ends.data()[c + 1] || class_ends.data()[c] < 0) fail("class_ends must rise");
    const auto range = id_range(class_of.data(), nodes, threads);
    if (range.least < 0 || range.most + 1 >= length(class_ends) || class_ends.data()[length(class_ends) - 1] != nodes)
        fail("class_of and class_ends do not agree");
    const Communities c{nodes, cumulative.data(), class_ends.data(), class_of.data(),
                        block, within_block,      within_class,      mean_degree};
    const auto run = [&]<class Id>(Id) {
        Pairs<Id> p = [&] {
            nb::gil_scoped_release release;
            return candidate_edges<Id>(c, seed, round, wanted, undirected, threads);
        }();
        return nb::make_tuple(made(std::move(p.from)), made(std::move(p.to)));
    };
    return wide ? run(int64_t{}) : run(int32_t{});
}

nb::tuple thin(const In1<int64_t>& indptr, const In& indices, int64_t keep, const In1<int64_t>& id, int threads) {
    check_indptr(indptr);
    const int64_t rows = length(indptr) - 1;
    if (length(id) != rows) fail("id must have one element per row");
    return with_ids(indices, "indices", [&](const auto* data) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        Pairs<T> p = [&] {
            nb::gil_scoped_release release;
            check_csr(indptr.data(), data, rows, length(indices), rows, threads);
            return thin_edges<T>(indptr.data(), data, rows, keep, id.data(), threads);
        }();
        return nb::make_tuple(made(std::move(p.from)), made(std::move(p.to)));
    });
}

void noisy(uint64_t seed, const nb::ndarray<const float, nb::ndim<2>, nb::device::cpu, nb::c_contig>& center,
           const In1<int64_t>& label, nb::ndarray<float, nb::ndim<2>, nb::device::cpu, nb::c_contig> out, int threads) {
    const auto range = id_range(label.data(), length(label), threads);
    if (length(label) && (range.least < 0 || range.most >= length(center))) fail("label out of range");
    if (out.shape(0) != label.shape(0) || out.shape(1) != center.shape(1)) fail("out has the wrong shape");
    nb::gil_scoped_release release;
    noisy_rows(seed, center.data(), label.data(), length(label), static_cast<int64_t>(center.shape(1)), out.data(),
               threads);
}

Made<uint64_t> words(uint64_t seed, uint32_t epoch, uint32_t purpose, int64_t count, int threads) {
    if (count < 0) fail("count must not be negative");
    Array<uint64_t> out(count);
    {
        nb::gil_scoped_release release;
        random_words(seed, epoch, purpose, count, out.data(), threads);
    }
    return made(std::move(out));
}

// ---- limits

nb::tuple bare_sample_of(const In1<int64_t>& indptr, const In1<int32_t>& indices, Out1<int32_t> stamp,
                         const In1<int64_t>& seeds, const In1<int32_t>& fanouts, Out1<int32_t> sources,
                         Out1<int32_t> targets, Out1<int64_t> nodes, uint64_t seed) {
    int64_t frontier = length(seeds), edges = 0;
    for (int64_t h = 0; h < length(fanouts); ++h) {
        if (fanouts.data()[h] < 1 || fanouts.data()[h] > 64) fail("the bare loop takes fanouts from 1 to 64");
        frontier *= fanouts.data()[h];
        edges += frontier;
    }
    if (length(sources) < edges || length(targets) < edges || length(nodes) < edges + length(seeds))
        fail("the bare loop needs room for the largest possible sample");
    const BareSample s = [&] {
        nb::gil_scoped_release release;
        return bare_sample(indptr.data(), indices.data(), stamp.data(), seeds.data(), length(seeds), fanouts.data(),
                           static_cast<int>(length(fanouts)), sources.data(), targets.data(), nodes.data(), seed);
    }();
    return nb::make_tuple(s.nodes, s.edges);
}

void bare_gather_of(const In& rows, const In1<int64_t>& ids, Out out, int threads) {
    nb::gil_scoped_release release;
    bare_gather(static_cast<char*>(out.data()), static_cast<const char*>(rows.data()), row_bytes(rows), ids.data(),
                length(ids), threads);
}

void bare_sum_of(const In& x, const In1<int64_t>& indptr, const In1<int32_t>& indices, Out out, int threads) {
    const Element element = element_of(x, "x");
    if (x.ndim() != 2 || x.shape(1) != kBareWidth || (element != Element::f32 && element != Element::bf16))
        fail("the bare loop takes float32 or bfloat16 rows of ", std::to_string(kBareWidth));
    nb::gil_scoped_release release;
    bare_sum(static_cast<char*>(out.data()), static_cast<const char*>(x.data()), element == Element::bf16, indptr.data(),
             indices.data(), length(indptr) - 1, threads);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "CPU kernels of Headrace. Every function releases the GIL and takes the number of threads.";
    m.attr("level") = vector_table().name;

    m.def("keep_freed_memory", &keep_freed_memory, "keep"_a);
    m.def("id_range", &range_of, "ids"_a.noconvert(), "threads"_a);
    m.def("build_csr", &build, "src"_a.noconvert(), "dst"_a.noconvert(), "num_nodes"_a, nb::kw_only(), "wide_index"_a,
          "undirected"_a, "deduplicate"_a, "self_loops"_a, "positions"_a, "threads"_a);
    m.def("transpose_csr", &transpose, "indptr"_a.noconvert(), "indices"_a.noconvert(), "columns"_a, nb::kw_only(),
          "positions"_a, "threads"_a);
    m.def("check_csr", &check, "indptr"_a.noconvert(), "indices"_a.noconvert(), "columns"_a, "threads"_a);

    m.def("expand_csr", &expand, "indptr"_a.noconvert(), "indices"_a.noconvert(), "out"_a.noconvert(), "threads"_a);

    nb::class_<Pool>(m, "Pool")
        .def("__init__", [](Pool*, int64_t) { fail("use Pool.create"); })
        .def_static("create", [](int64_t limit) { return std::make_shared<Pool>(std::max<int64_t>(limit, 0)); }, "limit"_a)
        .def("empty", &pool_empty, "bytes"_a)
        .def("stats", &pool_stats)
        .def("clear", &Pool::clear);
    m.def("gather", &gather, "rows"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(), "threads"_a);

    m.def("aggregate", &aggregate_into, "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "out"_a.noconvert(), "reduce"_a, nb::kw_only(), "ids"_a.none().noconvert(), "weight"_a.none().noconvert(),
          "position"_a.none().noconvert(), "scale"_a.none().noconvert(), "where"_a.none().noconvert(), "threads"_a);
    m.def("max_gradient", &max_gradient_into, "grad"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "position"_a.noconvert(), "forward"_a.noconvert(), "where"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "weight"_a.none().noconvert(), "threads"_a);
    m.def("weight_gradient", &weight_gradient_into, "x"_a.noconvert(), "indptr"_a.noconvert(),
          "indices"_a.noconvert(), "grad"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "ids"_a.none().noconvert(),
          "row_scale"_a.none().noconvert(), "where"_a.none().noconvert(), "threads"_a);

    m.def("dropout", &dropout_into, "x"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "seed"_a, "dropped"_a, "scale"_a,
          "relu"_a, "gate"_a.none().noconvert(), "threads"_a);

    m.def("attend", &attend_into, "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), "out"_a.noconvert(),
          "peak"_a.noconvert(), nb::kw_only(), "source"_a.none().noconvert(), "target"_a.noconvert(),
          "attention"_a.none().noconvert(), "slope"_a, "self_loops"_a, "dropout"_a, "seed"_a, "threads"_a);
    m.def("attend_gradient", &attend_gradient_into, "grad"_a.noconvert(), "out"_a.noconvert(), "peak"_a.noconvert(),
          "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(), nb::kw_only(), "t_indptr"_a.none().noconvert(),
          "t_indices"_a.none().noconvert(), "t_position"_a.none().noconvert(), "source"_a.none().noconvert(),
          "target"_a.noconvert(), "attention"_a.none().noconvert(), "grad_x"_a.none().noconvert(),
          "grad_source"_a.none().noconvert(), "grad_target"_a.none().noconvert(), "grad_attention"_a.none().noconvert(),
          "slope"_a, "self_loops"_a, "dropout"_a, "seed"_a, "threads"_a);
    m.def("attend_mask", &attend_mask_into, "mask"_a.noconvert(), "dropout"_a, "seed"_a, "threads"_a);

    nb::class_<PySampler>(m, "Sampler")
        .def(nb::init<In1<int64_t>, In, std::vector<int64_t>, bool, bool>(), "indptr"_a.noconvert(),
             "indices"_a.noconvert(), "fanouts"_a, nb::kw_only(), "replace"_a, "hash"_a)
        .def("sample", &PySampler::sample, "seeds"_a.noconvert(), "pool"_a, nb::kw_only(), "seed"_a, "epoch"_a,
             "batch"_a, "positions"_a, "threads"_a)
        .def_prop_ro("workspace_bytes", &PySampler::workspace_bytes);

    m.def("power_law_weights", &weights, "seed"_a, "exponent"_a, "most"_a, "nodes"_a, "threads"_a);
    m.def("candidate_edges", &candidates, "cumulative"_a.noconvert(), "class_ends"_a.noconvert(),
          "class_of"_a.noconvert(), nb::kw_only(), "block"_a, "within_block"_a, "within_class"_a, "mean_degree"_a,
          "seed"_a, "round"_a, "wanted"_a, "undirected"_a, "wide"_a, "threads"_a);
    m.def("thin_edges", &thin, "indptr"_a.noconvert(), "indices"_a.noconvert(), "keep"_a, "id"_a.noconvert(),
          "threads"_a);
    m.def("noisy_rows", &noisy, "seed"_a, "center"_a.noconvert(), "label"_a.noconvert(), "out"_a.noconvert(),
          "threads"_a);
    m.def("random_words", &words, "seed"_a, "epoch"_a, "purpose"_a, "count"_a, "threads"_a);

    m.def("bare_sample", &bare_sample_of, "indptr"_a.noconvert(), "indices"_a.noconvert(), "stamp"_a.noconvert(),
          "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "sources"_a.noconvert(), "targets"_a.noconvert(),
          "nodes"_a.noconvert(), "seed"_a);
    m.def("bare_gather", &bare_gather_of, "rows"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    m.def("bare_sum", &bare_sum_of, "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "out"_a.noconvert(), "threads"_a);
}
