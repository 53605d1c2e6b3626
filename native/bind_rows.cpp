// Rows: buffers, gather, aggregation, dropout.
#include "bind.h"
#include "aggregate.h"
#include "column_tile.h"
#include "dropout.h"
#include "gather.h"
#include "heap.h"

namespace headrace {
namespace {

Made<uint8_t> pool_empty(const std::shared_ptr<Pool>& pool, int64_t bytes) {
    if (bytes > kMostCount) throw std::bad_alloc();
    check_count(bytes, "bytes");
    return made<uint8_t>(Buffer(pool, static_cast<size_t>(bytes)), bytes);
}

nb::dict pool_stats(const Pool& pool) {
    const PoolStats s = pool.stats();
    nb::dict d;
    d["limit"] = s.limit, d["idle"] = s.idle, d["in_use"] = s.in_use, d["peak"] = s.peak;
    d["hits"] = s.hits, d["misses"] = s.misses;
    return d;
}

void gather(const In& rows, const In& ids, Out out, int threads) {
    if (rows.ndim() < 1 || out.ndim() != rows.ndim()) fail("out must have as many dimensions as rows");
    if (row_bytes(out) != row_bytes(rows) || out.dtype() != rows.dtype()) fail("out must have rows like those of x");
    check_apart({{"out", out}}, {{"x", rows}, {"ids", ids}});
    with_ids(ids, "ids", [&](const auto* data) {
        if (out.shape(0) != ids.shape(0)) fail("out must have one row per id");
        nb::gil_scoped_release release;
        gather_rows(static_cast<const char*>(rows.data()), length(rows), row_bytes(rows), data,
                    length(ids), static_cast<char*>(out.data()), threads);
    });
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
    if (indptr.data()[e.rows] < indptr.data()[0]) fail("indptr does not rise");
    if (e.count && (e.columns == 0 || e.x_rows == 0)) fail("there are entries, but no rows for them to name");
    if (position && length(*position) != e.count) fail("position must have one element per index");
    if (position && !weight) e.position = {};
    e.weight = coefficients(weight, e.element, e.count, "weight");
    e.scale = coefficients(scale, e.element, e.columns, "scale");
    return e;
}

void aggregate_into(const In& x, const In1<int64_t>& indptr, const In& indices, Out out, const std::string& reduce,
                    std::optional<In> ids, std::optional<In> weight, std::optional<In> position,
                    std::optional<In> scale, std::optional<Out> where, int threads, std::optional<In> row_scale,
                    std::optional<int64_t> tile) {
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
    if (tile && *tile < 1) fail("tile must be at least 1 column, or None for what suits, not ", std::to_string(*tile));
    if (tile && how == Reduce::max) fail("tile is for sum and mean: max takes all columns at once");
    const void* factors = coefficients(row_scale, e.element, e.rows, "row_scale");
    check_apart({{"out", out}, {"where", where}},
                {{"x", x}, {"indptr", indptr}, {"indices", indices}, {"ids", ids}, {"weight", weight}, {"position", position},
                 {"scale", scale}, {"row_scale", row_scale}});
    nb::gil_scoped_release release;
    aggregate(e, how, factors, tile.value_or(0), static_cast<char*>(out.data()),
              where ? static_cast<int32_t*>(where->data()) : nullptr, threads);
}

int64_t column_tile_of(int64_t rows, int64_t width, int64_t element_bytes, int64_t cache_bytes, double mean_degree) {
    if (rows < 0 || width < 0 || element_bytes < 1 || cache_bytes < 1 || !(mean_degree >= 0))
        fail("rows, width and mean_degree must not be negative, element_bytes and cache_bytes at least 1");
    check_count(product_of(width, element_bytes), "the bytes of a row");
    return column_tile(rows, width, element_bytes, cache_bytes, mean_degree);
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
    check_apart({{"out", out}}, {{"grad", grad}, {"indptr", indptr}, {"indices", indices}, {"position", position},
                                 {"forward", forward}, {"where", where}, {"weight", weight}});
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
    check_apart({{"out", out}}, {{"x", x}, {"indptr", indptr}, {"indices", indices}, {"grad", grad}, {"ids", ids},
                                 {"row_scale", row_scale}, {"where", where}});
    nb::gil_scoped_release release;
    weight_gradient(e, static_cast<const char*>(grad.data()), scale,
                    where ? static_cast<const int32_t*>(where->data()) : nullptr, out.data(), threads);
}

// Which elements of a whole those of x are: see Slice. Without rows and stride, one after the other from `first` on.
Slice slice_of(const In& x, const std::optional<In1<int64_t>>& rows, int64_t first, int64_t stride) {
    if (first < 0 || stride < 0) fail("first and stride must not be negative");
    const bool flat = !rows && !stride;
    if (flat && !first) return {};
    if (!flat) check_matrix(x, "x");
    const int64_t count = flat ? 1 : length(x), width = static_cast<int64_t>(flat ? x.size() : x.shape(1));
    if (rows && length(*rows) != count) fail("rows must have one element per row of x");
    int64_t last = std::max<int64_t>(count - 1, 0);
    if (rows && count) {
        const auto [low, high] = std::minmax_element(rows->data(), rows->data() + count);
        if (*low < 0) fail("rows must not be negative, but rows[", std::to_string(low - rows->data()), "] is ", std::to_string(*low));
        last = *high;
    }
    int64_t end;
    if (__builtin_mul_overflow(last, stride, &end) || __builtin_add_overflow(end, first, &end) ||
        __builtin_add_overflow(end, width, &end))
        fail("row ", std::to_string(last), " of a whole with ", std::to_string(stride), " columns has positions beyond 2**63");
    return {width, rows ? rows->data() : nullptr, first, stride};
}

void dropout_into(const In& x, Out out, uint64_t seed, uint32_t dropped, double scale, bool relu, std::optional<In> gate,
                  int threads, std::optional<In1<int64_t>> rows, int64_t first, int64_t stride) {
    const Element element = element_of(x, "x");
    if (out.size() != x.size() || out.dtype() != x.dtype()) fail("out must have the size and type of x");
    if (gate && (gate->size() != x.size() || gate->dtype() != x.dtype())) fail("gate must have the size and type of x");
    if (dropped >= 1u << 16) fail("dropped must be below 65536");
    const Slice slice = slice_of(x, rows, first, stride);
    check_apart({{"out", out}}, {{"x", x}, {"gate", gate}, {"rows", rows}});
    const DropoutJob job{stream_key(seed, 0, 0, Purpose::dropout), dropped, relu, scale, x.data(), out.data(), slice};
    nb::gil_scoped_release release;
    dropout(element, job, gate ? gate->data() : nullptr, static_cast<int64_t>(x.size()), threads);
}

}  // namespace

void bind_rows(nb::module_& m) {
    m.def("keep_freed_memory", &keep_freed_memory, "keep"_a);
    m.def("share_one_heap", &share_one_heap);
    nb::class_<Pool>(m, "Pool")
        .def("__init__", [](Pool*, int64_t) { fail("use Pool.create"); })
        .def_static("create", [](int64_t limit) { return std::make_shared<Pool>(std::max<int64_t>(limit, 0)); }, "limit"_a)
        .def("empty", &pool_empty, "bytes"_a)
        .def("stats", &pool_stats)
        .def("clear", &Pool::clear);
    m.def("gather", &gather, "rows"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    m.def("aggregate", &aggregate_into, "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "out"_a.noconvert(), "reduce"_a, nb::kw_only(), "ids"_a.none().noconvert(), "weight"_a.none().noconvert(),
          "position"_a.none().noconvert(), "scale"_a.none().noconvert(), "where"_a.none().noconvert(), "threads"_a,
          "row_scale"_a.noconvert() = nb::none(), "tile"_a = nb::none());
    m.def("column_tile", &column_tile_of, "rows"_a, "width"_a, "element_bytes"_a, "cache_bytes"_a, "mean_degree"_a);
    m.def("last_level_cache", &last_level_cache);
    m.def("max_gradient", &max_gradient_into, "grad"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "position"_a.noconvert(), "forward"_a.noconvert(), "where"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
          "weight"_a.none().noconvert(), "threads"_a);
    m.def("weight_gradient", &weight_gradient_into, "x"_a.noconvert(), "indptr"_a.noconvert(),
          "indices"_a.noconvert(), "grad"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "ids"_a.none().noconvert(),
          "row_scale"_a.none().noconvert(), "where"_a.none().noconvert(), "threads"_a);
    m.def("dropout", &dropout_into, "x"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "seed"_a, "dropped"_a, "scale"_a,
          "relu"_a, "gate"_a.none().noconvert(), "threads"_a, "rows"_a.noconvert() = nb::none(), "first"_a = 0, "stride"_a = 0);
}

}  // namespace headrace
