// The bare loops that benchmarks take for limits. They follow indices without a look, since a limit has no work that is not needed:
// for arrays that a kernel has read before.
#include "bind.h"
#include "limits.h"

namespace headrace {
namespace {

nb::tuple bare_sample_of(const In1<int64_t>& indptr, const In1<int32_t>& indices, Out1<int32_t> stamp,
                         const In1<int64_t>& seeds, const In1<int32_t>& fanouts, Out1<int32_t> sources,
                         Out1<int32_t> targets, Out1<int64_t> nodes, uint64_t seed) {
    check_indptr(indptr);
    if (length(stamp) != length(indptr) - 1) fail("stamp must have one element per node");
    int64_t frontier = length(seeds), edges = 0;
    for (int64_t h = 0; h < length(fanouts); ++h) {
        if (fanouts.data()[h] < 1 || fanouts.data()[h] > 64) fail("the bare loop takes fanouts from 1 to 64");
        frontier *= fanouts.data()[h];
        edges += frontier;
        check_count(edges, "the largest possible sample");
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
    if (row_bytes(out) != row_bytes(rows) || length(out) != length(ids)) fail("the bare loop needs a row of out per id");
    nb::gil_scoped_release release;
    bare_gather(static_cast<char*>(out.data()), static_cast<const char*>(rows.data()), row_bytes(rows), ids.data(),
                length(ids), threads);
}

void bare_sum_of(const In& x, const In1<int64_t>& indptr, const In1<int32_t>& indices, Out out, int threads) {
    const Element element = element_of(x, "x");
    if (x.ndim() != 2 || x.shape(1) != kBareWidth || (element != Element::f32 && element != Element::bf16))
        fail("the bare loop takes float32 or bfloat16 rows of ", std::to_string(kBareWidth));
    if (length(indptr) < 1 || out.ndim() != 2 || length(out) != length(indptr) - 1 || row_bytes(out) != row_bytes(x))
        fail("the bare loop needs a row of out per row of indptr");
    nb::gil_scoped_release release;
    bare_sum(static_cast<char*>(out.data()), static_cast<const char*>(x.data()), element == Element::bf16, indptr.data(),
             indices.data(), length(indptr) - 1, threads);
}

}  // namespace

void bind_limits(nb::module_& m) {
    m.def("bare_sample", &bare_sample_of, "indptr"_a.noconvert(), "indices"_a.noconvert(), "stamp"_a.noconvert(),
          "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "sources"_a.noconvert(), "targets"_a.noconvert(),
          "nodes"_a.noconvert(), "seed"_a);
    m.def("bare_gather", &bare_gather_of, "rows"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
    m.def("bare_sum", &bare_sum_of, "x"_a.noconvert(), "indptr"_a.noconvert(), "indices"_a.noconvert(),
          "out"_a.noconvert(), "threads"_a);
}

}  // namespace headrace
