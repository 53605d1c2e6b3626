// Properties and orders of graphs.
#include <chrono>

#include "bind.h"
#include "csr.h"
#include "lru.h"
#include "permute.h"
#include "properties.h"
#include "rabbit.h"

namespace headrace {
namespace {

using Order = std::optional<In1<int64_t>>;

const int64_t* order_of(const Order& order, int64_t rows, int threads) {
    if (!order) return nullptr;
    if (length(*order) != rows) fail("order must have one element per row");
    const auto range = id_range(order->data(), rows, threads);
    if (rows && (range.least < 0 || range.most >= rows)) fail("order names a row that is not there");
    return order->data();
}

// Calls body(indices, rows) without the GIL, after a check of the graph.
template <class Body>
auto with_graph(const In1<int64_t>& indptr, const In& indices, int threads, Body body) {
    check_indptr(indptr);
    return with_ids(indices, "indices", [&](const auto* data) {
        const int64_t rows = length(indptr) - 1;
        nb::gil_scoped_release release;
        check_csr(indptr.data(), data, rows, length(indices), rows, threads);
        return body(data, rows);
    });
}

nb::dict summary(const In1<int64_t>& indptr, const In& indices, double hub, int threads) {
    const Summary s = with_graph(indptr, indices, threads, [&](const auto* data, int64_t rows) {
        return summarize(indptr.data(), data, rows, hub, threads);
    });
    nb::dict out;
    out["max_degree"] = s.max_degree;
    out["empty_rows"] = s.empty_rows;
    out["unread"] = s.unread;
    out["isolated"] = s.isolated;
    out["hubs"] = s.hubs;
    out["span"] = s.span;
    out["squares"] = s.squares;
    out["symmetric"] = s.symmetric;
    return out;
}

nb::tuple reuse(const In1<int64_t>& indptr, const In& indices, const Order& order, int64_t window, int64_t sample, int threads) {
    check_indptr(indptr);
    if (window < 1 || sample < 1) fail("window and sample must be positive");
    check_count(window, "window");
    const int64_t* visited = order_of(order, length(indptr) - 1, threads);
    const Reuse r = with_graph(indptr, indices, threads, [&](const auto* data, int64_t rows) {
        return window_reuse(indptr.data(), data, rows, visited, window, sample, threads);
    });
    return nb::make_tuple(r.entries, r.unique);
}

nb::tuple lru(const In1<int64_t>& indptr, const In& indices, const Order& order, int64_t capacity, int64_t windows, int threads) {
    check_indptr(indptr);
    if (capacity < 1 || windows < 1) fail("capacity and windows must be positive");
    check_count(windows, "windows");
    const int64_t* visited = order_of(order, length(indptr) - 1, threads);
    const Reads r = with_graph(indptr, indices, threads, [&](const auto* data, int64_t rows) {
        return simulate_lru(indptr.data(), data, rows, visited, capacity, windows, threads);
    });
    return nb::make_tuple(r.counted, r.missed);
}

Made<int64_t> inverse(const In1<int64_t>& order, int threads) {
    return filled<int64_t>(length(order), [&](int64_t* position) { invert(order.data(), length(order), position, threads); });
}

nb::tuple permute(const In1<int64_t>& indptr, const In& indices, const In1<int64_t>& order, int threads) {
    check_indptr(indptr);
    if (length(order) != length(indptr) - 1) fail("order must have one element per row");
    return with_ids(indices, "indices", [&](const auto* data) {
        auto out = [&] {
            nb::gil_scoped_release release;
            const int64_t rows = length(order);
            check_csr(indptr.data(), data, rows, length(indices), rows, threads);
            Array<std::remove_const_t<std::remove_pointer_t<decltype(data)>>> position(rows);
            invert(order.data(), rows, position.data(), threads);
            return permute_csr(indptr.data(), data, rows, order.data(), position.data(), threads);
        }();
        return nb::make_tuple(made(std::move(out.indptr)), made(std::move(out.indices)));
    });
}

// `indptr` and `permuted` are those that permute_csr was given and gave for the same order.
void entries(const In1<int64_t>& indptr, const In1<int64_t>& permuted, const In1<int64_t>& order, const In& values, Out out,
             int threads) {
    const int64_t rows = length(order);
    if (length(indptr) != rows + 1 || length(permuted) != rows + 1) fail("indptr, permuted and order do not agree");
    if (values.ndim() < 1 || out.ndim() < 1 || values.nbytes() != out.nbytes() || row_bytes(values) != row_bytes(out))
        fail("values and out must have one shape and type");
    if (length(values) != indptr.data()[rows] || permuted.data()[rows] != indptr.data()[rows]) fail("values must have a row per entry");
    order_of(order, rows, threads);
    check_apart({{"out", out}}, {{"indptr", indptr}, {"permuted", permuted}, {"order", order}, {"values", values}});
    // Both rise, from 0 to the number of entries, and by as much.
    const int64_t *from = indptr.data(), *to = permuted.data();
    if (from[0] != 0 || to[0] != 0) fail("indptr and permuted must begin with 0");
    for (int64_t i = 0; i < rows; ++i)
        if (from[i] > from[i + 1] || to[i] > to[i + 1] || from[i + 1] > from[rows] || to[i + 1] > to[rows])
            fail("indptr and permuted must not decrease");
    for (int64_t i = 0; i < rows; ++i)
        if (const int64_t v = order.data()[i]; to[i + 1] - to[i] != from[v + 1] - from[v]) fail("permuted is not indptr in this order");
    nb::gil_scoped_release release;
    permute_entries(indptr.data(), permuted.data(), rows, order.data(), static_cast<const char*>(values.data()), row_bytes(values),
                    static_cast<char*>(out.data()), threads);
}

Made<int64_t> least(const In1<int64_t>& indptr, const In& indices, int threads) {
    check_indptr(indptr);
    Array<int64_t> out(length(indptr) - 1);
    with_graph(indptr, indices, threads, [&](const auto* data, int64_t rows) {
        least_columns(indptr.data(), data, rows, rows, out.data(), threads);
    });
    return made(std::move(out));
}

Made<int64_t> rabbit(const In1<int64_t>& indptr, const In& indices, const Order& out_indptr, const std::optional<In>& out_indices,
                     const nb::object& progress, int threads) {
    check_indptr(indptr);
    if (out_indptr.has_value() != out_indices.has_value()) fail("the transposed rows are given whole or not at all");
    using Clock = std::chrono::steady_clock;
    Clock::time_point told = Clock::now();
    const Tick tick = [&](int64_t done, int64_t total) {
        const Clock::time_point now = Clock::now();
        if (done < total && now - told < std::chrono::milliseconds(100)) return;
        told = now;
        nb::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (!progress.is_none()) progress(done, total);
    };
    Array<int64_t> order = with_graph(indptr, indices, threads, [&](const auto* data, int64_t rows) {
        using Id = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        const Rows<Id> in{indptr.data(), data};
        if (!out_indices) return rabbit_order<Id>(in, nullptr, rows, threads, tick);
        require(is_int(*out_indices, sizeof(Id) * 8) && out_indices->ndim() == 1 && length(*out_indptr) == rows + 1,
                "the transposed rows must be as many and of one type with the rows");
        const Rows<Id> out{out_indptr->data(), static_cast<const Id*>(out_indices->data())};
        check_csr(out.indptr, out.indices, rows, length(*out_indices), rows, threads);
        return rabbit_order<Id>(in, &out, rows, threads, tick);
    });
    return made(std::move(order));
}

}  // namespace

void bind_order(nb::module_& m) {
    m.def("summarize", &summary, "indptr"_a.noconvert(), "indices"_a.noconvert(), "hub"_a, "threads"_a);
    m.def("window_reuse", &reuse, "indptr"_a.noconvert(), "indices"_a.noconvert(), "order"_a.noconvert().none(), nb::kw_only(),
          "window"_a, "sample"_a, "threads"_a);
    m.def("simulate_lru", &lru, "indptr"_a.noconvert(), "indices"_a.noconvert(), "order"_a.noconvert().none(), nb::kw_only(),
          "capacity"_a, "windows"_a, "threads"_a);
    m.def("invert_order", &inverse, "order"_a.noconvert(), "threads"_a);
    m.def("permute_csr", &permute, "indptr"_a.noconvert(), "indices"_a.noconvert(), "order"_a.noconvert(), "threads"_a);
    m.def("permute_entries", &entries, "indptr"_a.noconvert(), "permuted"_a.noconvert(), "order"_a.noconvert(),
          "values"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    m.def("least_columns", &least, "indptr"_a.noconvert(), "indices"_a.noconvert(), "threads"_a);
    m.def("rabbit_order", &rabbit, "indptr"_a.noconvert(), "indices"_a.noconvert(), "out_indptr"_a.noconvert().none(),
          "out_indices"_a.noconvert().none(), nb::kw_only(), "progress"_a.none(), "threads"_a);
}

}  // namespace headrace
