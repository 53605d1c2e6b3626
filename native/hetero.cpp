#include "hetero.h"

#include "common.h"
#include "memory.h"
#include "philox.h"
#include "table.h"

namespace headrace {
namespace {

constexpr int64_t kAhead = 32;  // entries requested from memory before they are needed

const void* address(const Ids& ids, int64_t at) { return static_cast<const char*>(ids.data) + at * (ids.wide ? 8 : 4); }

// Which local id each node of one type has in this batch.
struct TypeTable {
    bool hash = false;
    StampTable<int64_t> stamps;
    HashTable<int64_t> cells;

    template <class Body>
    auto with(Body body) {
        return hash ? body(cells) : body(stamps);
    }
};

}  // namespace

struct HeteroSampler::Workspace {
    std::vector<TypeTable> tables;
    std::vector<int64_t> raw;  // neighbors before relabeling

    int64_t bytes() const {
        int64_t total = static_cast<int64_t>(raw.capacity() * 8);
        for (const TypeTable& table : tables) total += table.stamps.bytes() + table.cells.bytes();
        return total;
    }
};

HeteroSampler::HeteroSampler(std::vector<int64_t> num_nodes, std::vector<Relation> relations, size_t hops,
                             bool replace, std::vector<bool> hash)
    : num_nodes_(std::move(num_nodes)), relations_(std::move(relations)), hops_(hops), replace_(replace),
      hash_(std::move(hash)) {
    require(hash_.size() == num_nodes_.size(), "hash must have one entry per node type");
    // The counter's hop word holds the hop in its low byte and the edge type, counted from 1, above.
    require(relations_.size() < (1u << 24) - 1 && hops_ < 256, "too many edge types or hops");
    const auto types = static_cast<int64_t>(num_nodes_.size());
    for (const Relation& r : relations_) {
        require(r.source >= 0 && r.source < types && r.target >= 0 && r.target < types, "an edge type names no node type");
        require(r.rows == num_nodes_[static_cast<size_t>(r.target)], "indptr must have one row per target node");
        require(r.fanouts.size() == hops_, "every edge type needs one fanout per hop");
        for (int64_t k : r.fanouts) require(k >= -1 && k < kMost, "a fanout must be -1 (all) or at least 0");
    }
}

HeteroSampler::~HeteroSampler() = default;

int64_t HeteroSampler::workspace_bytes() const { return shelf_.bytes(); }

HeteroResult HeteroSampler::sample(const HeteroRequest& request, const std::shared_ptr<Pool>& pool) {
    const auto make = [&] {
        auto work = std::make_unique<Workspace>();
        work->tables.resize(num_nodes_.size());
        for (size_t t = 0; t < num_nodes_.size(); ++t) work->tables[t].hash = hash_[t];
        return work;
    };
    return shelf_.with(make, [&](Workspace& work) { return expand(request, pool, work); });
}

HeteroResult HeteroSampler::expand(const HeteroRequest& request, const std::shared_ptr<Pool>& pool, Workspace& work) {
    const VectorTable& vector = vector_table();
    const PhiloxKey key = stream_key(request.seed, request.epoch, request.batch, Purpose::sample);
    const size_t types = num_nodes_.size();
    HeteroResult out;
    std::vector<int64_t> count(types), begin(types, 0), end(types);  // nodes so far; the frontier
    std::vector<int64_t> edge_count(relations_.size(), 0);

    for (size_t t = 0; t < types; ++t) {
        const int64_t seeds = request.num_seeds[t];
        require(seeds < kMost / 2, "too many seeds for one sample");
        for (int64_t i = 0; i < seeds; ++i)
            require(request.seeds[t][i] >= 0 && request.seeds[t][i] < num_nodes_[t], "seed out of range");
    }
    struct End {  // ids handed out so far must count as stale for the next batch, also after an error
        std::vector<TypeTable>& tables;
        const std::vector<int64_t>& count;
        size_t begun = 0;
        ~End() {
            for (size_t t = 0; t < begun; ++t)
                tables[t].with([&](auto& table) { table.end(std::max<int64_t>(count[t], 1)); });
        }
    } end_of_batch{work.tables, count};
    for (size_t t = 0; t < types; ++t) {
        const int64_t seeds = request.num_seeds[t];
        out.nodes.emplace_back(pool, std::max<int64_t>(seeds, 8) * sizeof(int64_t));
        work.tables[t].with([&](auto& table) {
            table.begin(num_nodes_[t]);
            table.reserve(0, seeds, [](int64_t) { return int64_t{0}; });
            for (int64_t i = 0; i < seeds; ++i) {
                out.nodes[t].as<int64_t>()[i] = request.seeds[t][i];
                table.find_or_add(request.seeds[t][i], static_cast<int32_t>(i));  // a repeated seed keeps its first id
            }
        });
        ++end_of_batch.begun;
        count[t] = seeds;
        out.node_counts.push_back({seeds});
    }
    for (size_t r = 0; r < relations_.size(); ++r) {
        out.indptr.emplace_back(pool, 64);
        out.indptr[r].as<int64_t>()[0] = 0;
        out.indices.emplace_back(pool, 64);
        out.positions.emplace_back(pool, 64);
        out.edge_counts.emplace_back();
    }

    for (size_t hop = 0; hop < hops_; ++hop) {
        end = count;
        for (size_t r = 0; r < relations_.size(); ++r) {
            const Relation& relation = relations_[r];
            const auto source = static_cast<size_t>(relation.source), target = static_cast<size_t>(relation.target);
            const int64_t from = begin[target], frontier = end[target] - from, fanout = relation.fanouts[hop];
            const int64_t* frontier_nodes = out.nodes[target].as<int64_t>() + from;
            FirstError error;

            // How many neighbors each frontier node takes.
            out.indptr[r].grow((end[target] + 1) * sizeof(int64_t), (from + 1) * sizeof(int64_t));
            int64_t* indptr = out.indptr[r].as<int64_t>() + from;
            for (int64_t i = 0; i < frontier; ++i) {
                if (i + kAhead < frontier) prefetch(relation.indptr + frontier_nodes[i + kAhead]);
                const int64_t first = relation.indptr[frontier_nodes[i]], last = relation.indptr[frontier_nodes[i] + 1];
                require(first >= 0 && last >= first && last <= relation.edges && last - first <= UINT32_MAX,
                        "the graph's indptr is corrupt");
                const int64_t degree = last - first;
                indptr[i + 1] = indptr[i] + (fanout < 0 ? degree : replace_ ? (degree ? fanout : 0) : std::min(degree, fanout));
            }
            const int64_t before = edge_count[r], added = indptr[frontier] - before;
            require(indptr[frontier] < kMost / 2 && count[source] + added < kMost / 2,
                    "the sample is too large: use smaller fanouts or fewer seeds");
            out.indices[r].grow((before + added) * sizeof(int32_t), before * sizeof(int32_t));
            out.positions[r].grow((before + added) * sizeof(int64_t), before * sizeof(int64_t));
            int32_t* indices = out.indices[r].as<int32_t>() + before;
            int64_t* positions = out.positions[r].as<int64_t>() + before;
            if (static_cast<int64_t>(work.raw.size()) < added) work.raw.resize(static_cast<size_t>(added));
            int64_t* raw = work.raw.data();

            // Which neighbors: rows are independent, so threads share them.
            const auto word = static_cast<uint32_t>(hop) | static_cast<uint32_t>(r + 1) << 8;
            const int parts = useful_threads(request.threads, added, 4096);
#pragma omp parallel for schedule(static, 1) num_threads(parts) if (parts > 1)
            for (int p = 0; p < parts; ++p)
                error.guard([&] {
                    std::vector<int64_t> scratch;
                    DrawRow rows[kDrawGroup];
                    const int64_t stop = cut(frontier, parts, p + 1);
                    for (int64_t i = cut(frontier, parts, p); i < stop;) {
                        int64_t group = 0, most = 0;
                        const int64_t offset = indptr[i] - before;
                        for (; group < kDrawGroup && i < stop; ++group, ++i) {
                            const int64_t node = frontier_nodes[i], first = relation.indptr[node];
                            const auto degree = static_cast<uint32_t>(relation.indptr[node + 1] - first);
                            const int64_t take = indptr[i + 1] - indptr[i];
                            rows[group] = {static_cast<uint64_t>(node), first, degree, take};
                            if (replace_ || take < degree) most = std::max(most, take);
                        }
                        if (static_cast<int64_t>(scratch.size()) < draw_scratch(most))
                            scratch.resize(static_cast<size_t>(draw_scratch(most)));
                        vector.draw(key, word, replace_ && fanout >= 0, rows, group, scratch.data(), positions + offset);
                    }
                    const int64_t last = indptr[stop] - before;
                    for (int64_t e = indptr[cut(frontier, parts, p)] - before; e < last; ++e) {
                        if (e + kAhead < last) prefetch(address(relation.indices, positions[e + kAhead]));
                        raw[e] = relation.indices[positions[e]];
                        if (raw[e] < 0 || raw[e] >= num_nodes_[source]) {
                            error.set("the graph holds an index out of range");
                            break;
                        }
                    }
                });
            error.rethrow();

            // Local ids, in order: a node that is new to the sample gets the next one of its type.
            out.nodes[source].grow((count[source] + added) * sizeof(int64_t), count[source] * sizeof(int64_t));
            int64_t* nodes = out.nodes[source].as<int64_t>();
            work.tables[source].with([&](auto& table) {
                for (int64_t e = 0; e < added;) {
                    const int64_t stop = std::min<int64_t>(e + 512, added);
                    int64_t next = count[source];
                    table.reserve(next, stop - e, [&](int64_t i) { return nodes[i]; });
                    for (; e < stop; ++e) {
                        if (e + kAhead < added) table.prefetch(raw[e + kAhead]);
                        const int32_t local = table.find_or_add(raw[e], static_cast<int32_t>(next));
                        if (local == next) nodes[next++] = raw[e];
                        indices[e] = local;
                    }
                    count[source] = next;
                }
            });
            edge_count[r] += added;
            out.edge_counts[r].push_back(added);
        }
        for (size_t t = 0; t < types; ++t) out.node_counts[t].push_back(count[t] - end[t]);
        begin = end;
    }
    return out;
}

}  // namespace headrace
