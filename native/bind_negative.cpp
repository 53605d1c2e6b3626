// Negative sampling.
#include "bind.h"
#include "negative.h"
#include "shared_negatives.h"

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
    check_count(count, "count");
    check_count(num_src, "num_src");
    check_count(num_dst, "num_dst");
    if (rounds < 1 || rounds > UINT32_MAX) fail("rounds must be from 1 to 2**32 - 1");
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

// What both calls below take.
struct SharedGiven {
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;
    int64_t chunks, amount, own;
    const In1<int64_t>&starts, &before;
    const std::optional<In1<double>>& cumulative;
    int threads;

    SharedDraws among(int64_t ends) const {
        if (chunks < 0 || amount < 1 || own < 0 || own > amount) fail("chunks and amount must be numbers of negatives");
        check_count(product_of(chunks, amount), "chunks times amount");
        check_count(ends, "ends");
        const int64_t ranges = length(starts);
        if (ranges < 1 || length(before) != ranges + 1) fail("before must have an element more than starts");
        const int64_t total = before.data()[ranges];
        if (before.data()[0] != 0 || !std::is_sorted(before.data(), before.data() + ranges + 1) || total < 1)
            fail("before must be running sums of ranges that hold a node");
        check_count(total, "before");
        for (int64_t r = 0; r < ranges; ++r) check_count(starts.data()[r], "starts");
        if (own && chunks && ends < 1) fail("there are no ends to draw from");
        return {seed, epoch, batch, chunks, amount, own, ends, ranges, starts.data(), before.data(),
                cumulative_of(cumulative, total, "cumulative"), threads};
    }
};

Made<int64_t> shared_negatives(int64_t ends, uint64_t seed, uint32_t epoch, uint64_t batch, int64_t chunks, int64_t amount,
                               int64_t own, const In1<int64_t>& starts, const In1<int64_t>& before,
                               const std::optional<In1<double>>& cumulative, int threads) {
    const SharedDraws draws = SharedGiven{seed, epoch, batch, chunks, amount, own, starts, before, cumulative, threads}.among(ends);
    Array<int64_t> drawn(draws.count());
    {
        nb::gil_scoped_release release;
        draw_shared(draws, drawn.data());
    }
    return made(std::move(drawn));
}

nb::tuple numbered_edges(const In& triples, const In1<int64_t>& positions, uint64_t seed, uint32_t epoch, uint64_t batch,
                         int64_t chunks, int64_t amount, int64_t own, const In1<int64_t>& starts, const In1<int64_t>& before,
                         const std::optional<In1<double>>& cumulative, int threads) {
    if (triples.ndim() != 2 || triples.shape(1) != 3) fail("triples must have three columns");
    if (!is_int(triples, 32) && !is_int(triples, 64)) fail("triples must be int32 or int64");
    EdgeNumbers edges;
    edges.triples = {triples.data(), is_int(triples, 64)};
    edges.triple_count = length(triples);
    edges.positions = positions.data();
    edges.edges = length(positions);
    const SharedDraws draws =
        SharedGiven{seed, epoch, batch, chunks, amount, own, starts, before, cumulative, threads}.among(2 * edges.edges);
    const int64_t count = 2 * edges.edges + draws.count();
    Array<int64_t> relation(edges.edges), nodes(count), ids(count), place(count);
    edges.relation = relation.data();
    edges.nodes = nodes.data();
    edges.ids = ids.data();
    edges.place = place.data();
    const int64_t distinct = [&] {
        nb::gil_scoped_release release;
        return number_edges(edges, draws);
    }();
    return nb::make_tuple(made(std::move(relation)), made(std::move(nodes)), made(std::move(ids)), made(std::move(place)),
                          distinct);
}

}  // namespace

void bind_negative(nb::module_& m) {
    m.def("shared_negatives", &shared_negatives, "ends"_a, nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a, "chunks"_a, "amount"_a,
          "own"_a, "starts"_a, "before"_a, "cumulative"_a.none(), "threads"_a);
    m.def("numbered_edges", &numbered_edges, "triples"_a.noconvert(), "positions"_a.noconvert(), nb::kw_only(), "seed"_a, "epoch"_a,
          "batch"_a, "chunks"_a, "amount"_a, "own"_a, "starts"_a, "before"_a, "cumulative"_a.none(), "threads"_a);
    m.def("negatives", &negatives, "count"_a, nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a, "num_src"_a, "num_dst"_a,
          "src"_a.none(), "src_cumulative"_a.none(), "dst_cumulative"_a.none(), "indptr"_a.none(), "indices"_a.none(),
          "rounds"_a, "threads"_a);
}

}  // namespace headrace
