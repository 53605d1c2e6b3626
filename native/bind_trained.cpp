// Rows that are trained.
#include "bind.h"
#include "trained.h"

namespace headrace {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::device::cpu, nb::c_contig>;

// Parts are given by address: whoever calls keeps their memory while the call lasts.
TrainedTable table_of(const In1<int64_t>& rows, const In1<int64_t>& state, int64_t rows_per_part, int64_t num_rows,
                      int64_t width, int64_t state_width, bool half) {
    if (length(rows) != length(state)) fail("rows and state must have one address per part");
    if (rows_per_part < 1 || num_rows < 0 || num_rows > product_of(length(rows), rows_per_part))
        fail(std::to_string(num_rows), " rows do not fit into ", std::to_string(length(rows)), " parts of ",
             std::to_string(rows_per_part));
    return {rows.data(), state.data(), length(rows), rows_per_part, num_rows, width, state_width, half};
}

// The rows and states at hand must not lie in the table.
void check_apart_from(const TrainedTable& table, const Span& rows, const Span& state) {
    const int64_t row_bytes = table.width * (table.half ? 2 : 4), state_bytes = table.state_width * 4;
    for (int64_t part = 0; part < table.parts; ++part) {
        const int64_t left = table.num_rows - part * table.rows_per_part, count = std::clamp<int64_t>(left, 0, table.rows_per_part);
        if (!table.rows[part] || !count) continue;
        check_apart({rows, state}, {{"the table's rows", reinterpret_cast<const char*>(table.rows[part]), count * row_bytes},
                                    {"the table's state", reinterpret_cast<const char*>(table.state[part]), count * state_bytes}});
    }
}

template <class Pair>
void check_pair(const In& ids, const Pair& rows, const Pair& state) {
    if (length(rows) != length(ids) || length(state) != length(ids)) fail("rows and state must have one row per id");
}

int64_t gather_into(const In1<int64_t>& row_bases, const In1<int64_t>& state_bases, const In& ids, FloatsOut rows, FloatsOut state,
                    int64_t rows_per_part, int64_t num_rows, bool half, int threads) {
    check_pair(ids, rows, state);
    const TrainedTable table = table_of(row_bases, state_bases, rows_per_part, num_rows, static_cast<int64_t>(rows.shape(1)),
                                        static_cast<int64_t>(state.shape(1)), half);
    check_apart({{"rows", rows}, {"state", state}}, {{"ids", ids}, {"row_bases", row_bases}, {"state_bases", state_bases}});
    check_apart_from(table, {"rows", rows}, {"state", state});
    return with_ids(ids, "ids", [&](const auto* data) {
        nb::gil_scoped_release release;
        return gather_trained(table, data, length(ids), rows.data(), state.data(), threads);
    });
}

int64_t add_from(const In1<int64_t>& row_bases, const In1<int64_t>& state_bases, const In& ids, Floats rows, Floats state,
                 Out1<uint8_t> touched, int64_t rows_per_part, int64_t num_rows, bool half, uint64_t seed, uint64_t call,
                 int threads) {
    check_pair(ids, rows, state);
    const TrainedTable table = table_of(row_bases, state_bases, rows_per_part, num_rows, static_cast<int64_t>(rows.shape(1)),
                                        static_cast<int64_t>(state.shape(1)), half);
    if (length(touched) != table.parts) fail("touched must have one element per part");
    check_apart_from(table, {"rows", rows}, {"state", state});
    return with_ids(ids, "ids", [&](const auto* data) {
        nb::gil_scoped_release release;
        return add_trained(table, data, length(ids), rows.data(), state.data(), seed, call, touched.data(), threads);
    });
}

void normal_into(uint64_t seed, int64_t begin, double scale, FloatsOut out, int threads) {
    check_count(begin, "begin");
    nb::gil_scoped_release release;
    normal_rows(seed, begin, static_cast<float>(scale), length(out), static_cast<int64_t>(out.shape(1)), out.data(), threads);
}

}  // namespace

void bind_trained(nb::module_& m) {
    m.def("gather_trained", &gather_into, "row_bases"_a.noconvert(), "state_bases"_a.noconvert(), "ids"_a.noconvert(),
          "rows"_a.noconvert(), "state"_a.noconvert(), nb::kw_only(), "rows_per_part"_a, "num_rows"_a, "half"_a, "threads"_a);
    m.def("add_trained", &add_from, "row_bases"_a.noconvert(), "state_bases"_a.noconvert(), "ids"_a.noconvert(),
          "rows"_a.noconvert(), "state"_a.noconvert(), "touched"_a.noconvert(), nb::kw_only(), "rows_per_part"_a, "num_rows"_a,
          "half"_a, "seed"_a, "call"_a, "threads"_a);
    m.def("normal_rows", &normal_into, "seed"_a, "begin"_a, "scale"_a, "out"_a.noconvert(), nb::kw_only(), "threads"_a);
}

}  // namespace headrace
