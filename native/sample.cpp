#include "sample.h"

#include "builder.h"
#include "common.h"
#include "draw.h"
#include "shelf.h"
#include "table.h"
#include "workspace.h"

namespace headrace {
namespace {

template <class Id, class Table>
class TableSampler final : public Sampler<Id> {
public:
    TableSampler(const SampleGraph<Id>& graph, SampleOptions options) : graph_(graph), options_(std::move(options)) {}
    SampleResult sample(const SampleRequest& request, const std::shared_ptr<Pool>& pool) override;
    int64_t workspace_bytes() const override { return shelf_.bytes(); }

private:
    using Key = typename Table::Key;
    using Workspace = SampleWorkspace<Table>;
    using Builder = SampleBuilder<Id, Table>;
    static constexpr bool kTrees = Builder::kTrees;

    SampleResult expand(const SampleRequest& request, const std::shared_ptr<Pool>& pool, Workspace& work);
    void count_rows(const SampleRequest& request, const Builder& sample, int64_t fanout, Workspace& work, int64_t* counts);

    const SampleGraph<Id> graph_;
    const SampleOptions options_;
    Shelf<Workspace> shelf_;
};

template <class Id, class Table>
SampleResult TableSampler<Id, Table>::sample(const SampleRequest& request, const std::shared_ptr<Pool>& pool) {
    return shelf_.with([] { return std::make_unique<Workspace>(); },
                       [&](Workspace& work) { return expand(request, pool, work); });
}

// How many neighbors each frontier node takes, and out of which of its entries.
template <class Id, class Table>
void TableSampler<Id, Table>::count_rows(const SampleRequest& request, const Builder& sample, int64_t fanout, Workspace& work,
                                         int64_t* counts) {
    FirstError error;
    const int64_t rows = sample.frontier(), before = sample.first_row() - request.num_seeds;
    const Id* nodes = sample.frontier_nodes();
    const int32_t* trees = sample.frontier_trees();
    const bool by_edge = options_.edge_time && before >= 0;  // row i is of edge before + i
    const int workers = useful_threads(request.threads, rows, 1024);
#pragma omp parallel for schedule(static) num_threads(workers) if (workers > 1)
    for (int64_t i = 0; i < rows; ++i) {
        if (i + 32 < rows) prefetch(graph_.indptr + nodes[i + 32]);
        const int64_t node = static_cast<int64_t>(nodes[i]);
        int64_t first = graph_.indptr[node];
        const int64_t last = graph_.indptr[node + 1];
        if (!is_row(first, last, graph_.edges)) {
            error.set("the graph's indptr is corrupt");
            continue;
        }
        int64_t degree = last - first;
        if (kTrees && graph_.time) {
            degree = past(graph_, by_edge ? graph_.time : request.times, by_edge ? sample.positions()[before + i] : trees[i],
                          first, last, options_.inclusive);
            if (graph_.since) {
                const int64_t earlier = past(graph_, graph_.since, 0, first, last, false);
                first += earlier;
                degree = std::max<int64_t>(degree - earlier, 0);
            }
        }
        counts[i] = take_of(degree, fanout, options_.replace);
        if (options_.last) {  // and then all of what is left
            first += degree - counts[i];
            degree = counts[i];
        }
        work.begin[i] = first;
        work.degree[i] = static_cast<uint32_t>(degree);
    }
    error.rethrow();
}

template <class Id, class Table>
SampleResult TableSampler<Id, Table>::expand(const SampleRequest& request, const std::shared_ptr<Pool>& pool, Workspace& work) {
    const int threads = std::max(request.threads, 1);
    require(!kTrees || request.num_seeds <= kMostTrees, "too many seeds for disjoint trees: at most 2^24 - 1 fit one batch");
    require(!options_.labor || request.batch <= UINT32_MAX, "LABOR counts batches in 32 bits: batch must be below 2^32");
    Table& table = work.table;
    Builder sample(table, graph_.nodes, request.seeds, request.num_seeds, request.positions || options_.edge_time, pool);

    for (size_t hop = 0; hop < options_.fanouts.size(); ++hop) {
        const int64_t frontier = sample.frontier();
        FirstError error;
        work.reserve_rows(frontier);
        int64_t* counts = sample.counts();
        count_rows(request, sample, options_.fanouts[hop], work, counts);
        const int64_t added = sample.open_hop(), first_edge = sample.first_edge();
        const Id* nodes = sample.frontier_nodes();
        const int32_t* trees = sample.frontier_trees();
        const int64_t* offsets = sample.offsets();
        int64_t* positions = sample.positions();
        const HopDraw how = hop_draw(graph_, options_, request, static_cast<uint32_t>(hop));

        // Walks frontier rows [from, to), handing the keys of each group's neighbors to `hand_over`, in order.
        const auto walk = [&](Stretch<Key>& s, int64_t from, int64_t to, auto&& look_up, auto&& hand_over) {
            for (auto& group : s.ring) group.count = 0;
            int64_t next = from;
            for (int64_t g = 0, draining = 0; draining < 3; ++g) {
                auto& drawn = s.ring[g % 3];
                drawn.count = 0;
                if (next >= to) {
                    ++draining;
                } else {  // draw, and request the neighbors
                    int64_t rows = 0, take = 0, most = 0;
                    drawn.edge = offsets[next];
                    while (next + rows < to && rows < kDrawGroup && (rows == 0 || take < 512)) {
                        const int64_t i = next + rows, t = offsets[i + 1] - offsets[i];
                        s.rows[rows++] = {static_cast<uint64_t>(nodes[i]), work.begin[i], work.degree[i], t};
                        take += t;
                        if (options_.replace || t < work.degree[i]) most = std::max(most, t);
                    }
                    const int64_t scratch = how.ranked ? rank_scratch(most) : draw_scratch(most);
                    if (static_cast<int64_t>(s.scratch.size()) < scratch) s.scratch.resize(static_cast<size_t>(scratch));
                    if (static_cast<int64_t>(drawn.keys.size()) < take) {  // keys come last: they have room where positions do
                        drawn.positions.resize(static_cast<size_t>(take));
                        drawn.keys.resize(static_cast<size_t>(take));
                    }
                    draw_rows(how, kTrees ? trees + next : nullptr, s.rows, rows, s.scratch.data(), drawn.positions.data());
                    for (int64_t q = 0; q < take; ++q) prefetch(graph_.indices + drawn.positions[q]);
                    if constexpr (kTrees)  // the tree of each, until its node is known
                        for (int64_t i = 0, q = 0; i < rows; ++i)
                            for (int64_t t = 0; t < s.rows[i].take; ++t) drawn.keys[q++] = static_cast<Key>(trees[next + i]);
                    drawn.count = take;
                    next += rows;
                }
                if (auto& fetched = s.ring[(g + 2) % 3]; fetched.count) {  // read the neighbors, request their ids
                    for (int64_t q = 0; q < fetched.count; ++q) {
                        const Id node = graph_.indices[fetched.positions[q]];
                        if (node < 0 || static_cast<int64_t>(node) >= graph_.nodes) {
                            error.set("the graph holds an index out of range");
                            return;
                        }
                        fetched.keys[q] = Builder::key_of(node, static_cast<int32_t>(kTrees ? fetched.keys[q] : 0));
                        look_up(fetched.keys[q]);
                    }
                    if (positions) std::copy_n(fetched.positions.data(), fetched.count, positions + fetched.edge);
                }
                if (auto& known = s.ring[(g + 1) % 3]; known.count) hand_over(known.keys.data(), known.count, known.edge);
            }
        };

        // Puts keys in their places: a node for each, or one for all that are equal.
        const auto keep = [&](const Key* group, int64_t n, int64_t edge) {
            if constexpr (kTrees)
                if (options_.edge_time) return sample.append(group, n, edge);
            sample.number(group, n, edge);
        };
        const int parts = useful_threads(threads, added, 4096);
        if (static_cast<int>(work.stretches.size()) < parts) work.stretches.resize(static_cast<size_t>(parts));
        if (parts == 1) {
            walk(work.stretches[0], 0, frontier, [&](Key key) { if (!options_.edge_time) table.prefetch(key); }, keep);
            error.rethrow();
        } else {
            if (!options_.edge_time) work.raw.resize(static_cast<size_t>(added));
            Key* raw = work.raw.data();
#pragma omp parallel for schedule(static, 1) num_threads(parts)
            for (int p = 0; p < parts; ++p) {
                const auto row_at = [&](int64_t i) {
                    return std::lower_bound(offsets, offsets + frontier, first_edge + cut(added, parts, i)) - offsets;
                };
                error.guard([&] {
                    walk(work.stretches[p], p ? row_at(p) : 0, p + 1 < parts ? row_at(p + 1) : frontier, [](Key) {},
                         [&](const Key* group, int64_t n, int64_t edge) {
                             if (options_.edge_time) return keep(group, n, edge);
                             std::copy_n(group, n, raw + edge - first_edge);
                         });
                });
            }
            error.rethrow();
            if (!options_.edge_time) sample.number_all(raw, parts, work.is_new);
        }
        if (options_.edge_time) sample.close_appended();
        sample.close_hop();
    }
    return sample.take();
}

}  // namespace

template <class Id>
std::unique_ptr<Sampler<Id>> make_sampler(const SampleGraph<Id>& graph, SampleOptions options) {
    require(!options.fanouts.empty(), "fanouts must name at least one hop");
    for (int64_t k : options.fanouts) require(k >= -1 && k < kMost, "a fanout must be -1 (all) or at least 0");
    require(options.batch_dependency >= 1, "batch_dependency must be at least 1");
    if (options.disjoint) {
        require(options.fanouts.size() <= 255, "disjoint trees grow at most 255 hops");
        require(graph.nodes <= kMostTreeNodes, "disjoint trees need a graph of at most 2^40 nodes");
        return std::make_unique<TableSampler<Id, TreeTable>>(graph, std::move(options));
    }
    if (options.hash) return std::make_unique<TableSampler<Id, HashTable<Id>>>(graph, std::move(options));
    return std::make_unique<TableSampler<Id, StampTable<Id>>>(graph, std::move(options));
}

template std::unique_ptr<Sampler<int32_t>> make_sampler(const SampleGraph<int32_t>&, SampleOptions);
template std::unique_ptr<Sampler<int64_t>> make_sampler(const SampleGraph<int64_t>&, SampleOptions);

}  // namespace headrace
