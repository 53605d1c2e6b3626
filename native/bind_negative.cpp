// Negative sampling.
#include "bind.h"
#include "negative.h"

namespace headrace {
namespace {

const double* cumulative_of(const std::optional<In1<double>>& sums, int64_t nodes, const char* name) {
    if (!sums) return nullptr;
    if (length(*sums) != nodes) fail(name, " must have ", std::to_string(nodes), " elements");
    return sums->data();
}

nb::tuple negatives(int64_t count, uint64_t seed, uint32_t epoch, uint64_t batch, int64_t num_src, int64_t num_dst,
                    const std::optional<In1<int64_t>>& src, const std::optional<In1<double>>& src_cumulative,
                    const std::optional<In1<double>>& dst_cumulative, const std::optional<In1<int64_t>>& indptr,
                    const std::optional<In>& indices, int64_t rounds, int threads) {
    if (count < 0 || rounds < 1 || rounds > UINT32_MAX) fail("count must not be negative and rounds be at least 1");
    if (count > 0 && (num_dst < 1 || (!src && num_src < 1))) fail("there are no nodes to draw from");
    if (src && length(*src) != count) fail("src must have ", std::to_string(count), " elements");
    if (indptr.has_value() != indices.has_value()) fail("indptr and indices must be given together");
    NegativeRequest request;
    request.seed = seed;
    request.epoch = epoch;
    request.batch = batch;
    request.count = count;
    request.num_src = num_src;
    request.num_dst = num_dst;
    request.src_cumulative = cumulative_of(src_cumulative, num_src, "src_cumulative");
    request.dst_cumulative = cumulative_of(dst_cumulative, num_dst, "dst_cumulative");
    if (src) request.src = src->data();
    if (indptr) {
        check_indptr(*indptr);
        request.indptr = indptr->data();
        request.indices = ids_of(indices, "indices");
        request.rows = length(*indptr) - 1;
        request.edges = length(*indices);
    }
    request.rounds = indptr ? rounds : 1;
    request.threads = threads;
    Array<int64_t> drawn_src(src ? 0 : count), drawn_dst(count);
    const int64_t left = [&] {
        nb::gil_scoped_release release;
        return draw_negatives(request, drawn_src.data(), drawn_dst.data());
    }();
    nb::object sources = nb::none();
    if (!src) sources = nb::cast(made(std::move(drawn_src)));
    return nb::make_tuple(sources, made(std::move(drawn_dst)), left);
}

}  // namespace

void bind_negative(nb::module_& m) {
    m.def("negatives", &negatives, "count"_a, nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a, "num_src"_a, "num_dst"_a,
          "src"_a.none(), "src_cumulative"_a.none(), "dst_cumulative"_a.none(), "indptr"_a.none(), "indices"_a.none(),
          "rounds"_a, "threads"_a);
}

}  // namespace headrace
