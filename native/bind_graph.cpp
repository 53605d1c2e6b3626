// Graphs: building, checking and generating them.
#include <cmath>

#include "bind.h"
#include "csr.h"
#include "generate.h"

namespace headrace {
namespace {

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
    check_count(num_nodes, "num_nodes");
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
    check_count(columns, "columns");
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
    check_apart({{"out", out}}, {{"indptr", indptr}, {"indices", indices}});
    with_ids(indices, "indices", [&](const auto* data) {
        nb::gil_scoped_release release;
        const int64_t rows = length(indptr) - 1;
        check_csr(indptr.data(), data, rows, length(indices), INT64_MAX, threads);
        expand_csr(indptr.data(), data, rows, out.data(), out.data() + length(indices), threads);
    });
}

Made<double> weights(uint64_t seed, double exponent, double most, int64_t nodes, int threads) {
    check_count(nodes, "nodes");
    return filled<double>(nodes, [&](double* out) { power_law_weights(seed, exponent, most, nodes, out, threads); });
}

nb::tuple candidates(const In1<double>& cumulative, const In1<int64_t>& class_ends, const In1<int32_t>& class_of,
                     int64_t block, double within_block, double within_class, double mean_degree, uint64_t seed,
                     uint32_t round, double wanted, bool undirected, bool wide, int threads) {
    const int64_t nodes = length(class_of);
    if (nodes < 2) fail("a random graph needs at least two nodes");
    if (length(cumulative) != nodes + 1) fail("cumulative must have one element more than class_of");
    check_count(block, "block");
    if (block < 1) fail("block must be positive");
    for (int64_t i = 0; i < nodes; ++i)  // also false for NaN
        if (!(cumulative.data()[i] <= cumulative.data()[i + 1])) fail("cumulative must not fall");
    const double total = cumulative.data()[nodes];
    if (cumulative.data()[0] != 0.0 || !std::isfinite(total) || !(wanted >= 0 && wanted < 1e15))
        fail("cumulative must begin with 0 and be finite, and wanted must be a count");
    if (!std::isfinite(wanted / total) || !std::isfinite(static_cast<double>(nodes) / total))  // also if all weights are 0
        fail("cumulative must add up to more than 0");
    for (int64_t c = 0; c + 1 < length(class_ends); ++c)
        if (class_ends.data()[c] > class_ends.data()[c + 1] || class_ends.data()[c] < 0) fail("class_ends must rise");
    const auto range = id_range(class_of.data(), nodes, threads);
    if (range.least < 0 || int64_t{range.most} + 1 >= length(class_ends) || class_ends.data()[length(class_ends) - 1] != nodes)
        fail("class_of and class_ends do not agree");
    for (int64_t i = 0; i < nodes; ++i) {
        const int64_t* ends = class_ends.data() + class_of.data()[i];
        if (i < ends[0] || i >= ends[1]) fail("class_of and class_ends do not agree");
    }
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
    check_apart({{"out", out}}, {{"center", center}, {"label", label}});
    nb::gil_scoped_release release;
    noisy_rows(seed, center.data(), label.data(), length(label), static_cast<int64_t>(center.shape(1)), out.data(),
               threads);
}

}  // namespace

void bind_graph(nb::module_& m) {
    m.def("id_range", &range_of, "ids"_a.noconvert(), "threads"_a);
    m.def("build_csr", &build, "src"_a.noconvert(), "dst"_a.noconvert(), "num_nodes"_a, nb::kw_only(), "wide_index"_a,
          "undirected"_a, "deduplicate"_a, "self_loops"_a, "positions"_a, "threads"_a);
    m.def("transpose_csr", &transpose, "indptr"_a.noconvert(), "indices"_a.noconvert(), "columns"_a, nb::kw_only(),
          "positions"_a, "threads"_a);
    m.def("check_csr", &check, "indptr"_a.noconvert(), "indices"_a.noconvert(), "columns"_a, "threads"_a);
    m.def("expand_csr", &expand, "indptr"_a.noconvert(), "indices"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    m.def("power_law_weights", &weights, "seed"_a, "exponent"_a, "most"_a, "nodes"_a, "threads"_a);
    m.def("candidate_edges", &candidates, "cumulative"_a.noconvert(), "class_ends"_a.noconvert(),
          "class_of"_a.noconvert(), nb::kw_only(), "block"_a, "within_block"_a, "within_class"_a, "mean_degree"_a,
          "seed"_a, "round"_a, "wanted"_a, "undirected"_a, "wide"_a, "threads"_a);
    m.def("thin_edges", &thin, "indptr"_a.noconvert(), "indices"_a.noconvert(), "keep"_a, "id"_a.noconvert(),
          "threads"_a);
    m.def("noisy_rows", &noisy, "seed"_a, "center"_a.noconvert(), "label"_a.noconvert(), "out"_a.noconvert(),
          "threads"_a);
}

}  // namespace headrace
