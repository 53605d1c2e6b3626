#include "rabbit.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common.h"

namespace headrace {
namespace {

constexpr int64_t kEntriesPerTick = int64_t{1} << 22;
constexpr int64_t kAhead = 24;  // entries between the prefetch of a community and its use

template <class Id, class Weight>
class Aggregation {
public:
    Aggregation(const Rows<Id>& in, const Rows<Id>* out, int64_t nodes, int threads)
        : in_(in), out_(out), nodes_(nodes), parent_(nodes), child_(nodes), sibling_(nodes), kept_(nodes), weight_(nodes),
          strength_(nodes) {
        const int workers = useful_threads(threads, in.indptr[nodes], 1 << 16);
#pragma omp parallel for schedule(dynamic, 4096) num_threads(workers)
        for (int64_t v = 0; v < nodes; ++v) {
            parent_[v] = static_cast<Id>(v);
            child_[v] = sibling_[v] = kept_[v] = kNone;
            weight_[v] = 0;
            int64_t entries = 0;
            for (int64_t e = in.indptr[v]; e < in.indptr[v + 1]; ++e) entries += in.indices[e] != v;
            if (out)
                for (int64_t e = out->indptr[v]; e < out->indptr[v + 1]; ++e) entries += out->indices[e] != v;
            strength_[v] = static_cast<double>(entries);
        }
        // Sums of whole numbers below 2^53: exact in any order.
        total_ = std::accumulate(strength_.data(), strength_.data() + nodes, 0.0);
    }

    void run(const Tick& tick) {
        Array<Id> visit(nodes_);
        std::iota(visit.data(), visit.data() + nodes_, Id{0});
        std::stable_sort(visit.data(), visit.data() + nodes_, [&](Id a, Id b) { return strength_[a] < strength_[b]; });
        int64_t told = 0;
        for (int64_t i = 0; i < nodes_; ++i) {
            if (i + 2 < nodes_) {
                prefetch(in_.indices + in_.indptr[visit[i + 2]]);
                if (out_) prefetch(out_->indices + out_->indptr[visit[i + 2]]);
            }
            decide(visit[i]);
            if (seen_ - told > kEntriesPerTick || (i & 0xffff) == 0xffff) {
                told = seen_;
                tick(i, nodes_);
            }
        }
        tick(nodes_, nodes_);
    }

    // Each tree of merges becomes a range: a node, then what was merged into it, oldest first, so that what came together early
    // stands closest. Trees in order of their roots, nodes without edges behind all others.
    Array<int64_t> order() const {
        Array<int64_t> order(nodes_);
        int64_t next = 0;
        std::vector<Id> stack;
        for (int64_t root = 0; root < nodes_; ++root) {
            if (parent_[root] != root || strength_[root] == 0) continue;
            stack.push_back(static_cast<Id>(root));
            while (!stack.empty()) {
                const Id v = stack.back();
                stack.pop_back();
                order[next++] = v;
                for (Id c = child_[v]; c != kNone; c = sibling_[c]) stack.push_back(c);  // newest first: the oldest is on top
            }
        }
        for (int64_t v = 0; v < nodes_; ++v)
            if (strength_[v] == 0) order[next++] = v;
        return order;
    }

private:
    static constexpr Id kNone = -1, kRoot = -2;
    struct Entry {
        Id community;
        Weight weight;
    };

    Id community_of(Id v) {
        while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
        return v;
    }

    void add(Id v, Id community, Weight weight) {
        if (community == v) return;  // within the community of v
        if (weight_[community] == 0) touched_.push_back(community);
        weight_[community] += weight;
    }

    void add_row(Id v, const Rows<Id>& rows, Id member) {
        const int64_t begin = rows.indptr[member], end = rows.indptr[member + 1];
        for (int64_t e = begin; e < end; ++e) {
            if (e + kAhead < end) prefetch(&parent_[rows.indices[e + kAhead]]);
            add(v, community_of(rows.indices[e]), 1);
        }
        seen_ += end - begin;
    }

    void add_rows(Id v, Id member) {
        add_row(v, in_, member);
        if (out_) add_row(v, *out_, member);
    }

    void add_kept(Id v, Id member) {
        std::vector<Entry>& list = lists_[kept_[member]];
        const int64_t size = static_cast<int64_t>(list.size());
        for (int64_t i = 0; i < size; ++i) {
            if (i + kAhead < size) prefetch(&parent_[list[i + kAhead].community]);
            add(v, community_of(list[i].community), list[i].weight);
        }
        seen_ += size;
        std::vector<Entry>().swap(list);
        free_.push_back(kept_[member]);
        kept_[member] = kNone;
    }

    // Merge v into the neighboring community of the largest gain in modularity, w - s_v * s_u / W, if one is positive.
    void decide(Id v) {
        add_rows(v, v);
        for (Id c = child_[v]; c != kNone; c = sibling_[c]) {
            if (kept_[c] != kNone) add_kept(v, c);
            else add_rows(v, c);
        }
        double most = 0;
        Id best = kNone;
        for (const Id u : touched_) {
            const double gain = static_cast<double>(weight_[u]) - strength_[v] * strength_[u] / total_;
            if (gain > most || (gain == most && best != kNone && u < best)) {
                most = gain;
                best = u;
            }
        }
        if (best != kNone) merge(v, best);
        else kept_[v] = kRoot;
        for (const Id u : touched_) weight_[u] = 0;
        touched_.clear();
    }

    void merge(Id v, Id u) {
        parent_[v] = u;
        sibling_[v] = child_[u];
        child_[u] = v;
        strength_[u] += strength_[v];
        // The sums over a tree are kept for the visit of u, if that is still to come; a single node's are its rows, read again.
        if (child_[v] == kNone || kept_[u] == kRoot) return;
        if (free_.empty()) {
            free_.push_back(static_cast<Id>(lists_.size()));
            lists_.emplace_back();
        }
        kept_[v] = free_.back();
        free_.pop_back();
        std::vector<Entry>& list = lists_[kept_[v]];
        list.reserve(touched_.size());
        for (const Id c : touched_)
            if (c != u) list.push_back({c, weight_[c]});
    }

    const Rows<Id> in_;
    const Rows<Id>* const out_;
    const int64_t nodes_;
    Array<Id> parent_, child_, sibling_, kept_;  // kept: which list, or kRoot for a node that was visited and not merged
    Array<Weight> weight_;  // between the node that is decided and a community: 0 where there is no edge
    Array<double> strength_;
    std::vector<std::vector<Entry>> lists_;
    std::vector<Id> free_, touched_;
    double total_ = 0;
    int64_t seen_ = 0;
};

}  // namespace

template <class Id>
Array<int64_t> rabbit_order(const Rows<Id>& in, const Rows<Id>* out, int64_t nodes, int threads, const Tick& tick) {
    const auto run = [&]<class Weight>(Weight) {
        Aggregation<Id, Weight> aggregation(in, out, nodes, threads);
        aggregation.run(tick);
        return aggregation.order();
    };
    if constexpr (sizeof(Id) == 4)
        if (in.indptr[nodes] <= (int64_t{1} << 31)) return run(uint32_t{});  // both directions together stay below 2^32
    return run(uint64_t{});
}

template Array<int64_t> rabbit_order(const Rows<int32_t>&, const Rows<int32_t>*, int64_t, int, const Tick&);
template Array<int64_t> rabbit_order(const Rows<int64_t>&, const Rows<int64_t>*, int64_t, int, const Tick&);

}  // namespace headrace
