// A sample as it grows hop by hop: its nodes, rows and edges, and which local id each node has.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "common.h"
#include "relabel.h"
#include "sample.h"
#include "table.h"

namespace headrace {

// A hop: `counts()` are filled in, `open_hop()` makes room for that many edges, their keys are numbered in order, and `close_hop()`
// makes the nodes that were new the next frontier. Pointers hold until the next call of one of the three.
template <class Id, class Table>
class SampleBuilder {
public:
    using Key = typename Table::Key;
    static constexpr bool kTrees = std::is_same_v<Table, TreeTable>;

    SampleBuilder(Table& table, int64_t graph_nodes, const int64_t* seeds, int64_t num_seeds, bool positions,
                  const std::shared_ptr<Pool>& pool)
        : table_(table) {
        require(num_seeds < kMost, "too many seeds for one sample");
        for (int64_t i = 0; i < num_seeds; ++i) require(seeds[i] >= 0 && seeds[i] < graph_nodes, "seed out of range");
        out_.nodes = Buffer(pool, std::max<int64_t>(num_seeds, 1) * sizeof(Id));
        out_.indptr = Buffer(pool, (num_seeds + 1) * sizeof(int64_t));
        out_.indices = Buffer(pool, 64);
        if (positions) out_.positions = Buffer(pool, 64);
        if (kTrees) out_.trees = Buffer(pool, std::max<int64_t>(num_seeds, 1) * sizeof(int32_t));
        table_.begin(graph_nodes);
        table_.reserve(0, num_seeds, key_at());
        for (int64_t i = 0; i < num_seeds; ++i) {
            out_.nodes.template as<Id>()[i] = static_cast<Id>(seeds[i]);
            if (kTrees) trees()[i] = static_cast<int32_t>(i);
            table_.find_or_add(key_at()(i), static_cast<int32_t>(i));  // a repeated seed keeps its first id
        }
        out_.indptr.template as<int64_t>()[0] = 0;
        out_.node_counts.push_back(num_seeds);
        count_ = end_ = num_seeds;
    }
    SampleBuilder(const SampleBuilder&) = delete;
    SampleBuilder& operator=(const SampleBuilder&) = delete;
    // Ids handed out so far must count as stale for the next batch, also after an error.
    ~SampleBuilder() { table_.end(std::max<int64_t>(count_, 1)); }

    static Key key_of(Id node, int32_t tree) {
        if constexpr (kTrees) return tree_key(static_cast<uint64_t>(node), static_cast<uint64_t>(tree));
        return static_cast<Key>(node);
    }

    // The nodes to find neighbors for: the seeds, then those that the hop before added.
    int64_t frontier() const { return end_ - begin_; }
    int64_t first_row() const { return begin_; }
    const Id* frontier_nodes() const { return out_.nodes.template as<Id>() + begin_; }
    const int32_t* frontier_trees() const { return kTrees ? trees() + begin_ : nullptr; }

    // Where the number of edges of each frontier node goes.
    int64_t* counts() {
        out_.indptr.grow((end_ + 1) * sizeof(int64_t), (begin_ + 1) * sizeof(int64_t));
        return out_.indptr.template as<int64_t>() + begin_ + 1;
    }

    // Turns counts into offsets and makes room; returns how many edges the hop has.
    int64_t open_hop() {
        int64_t* indptr = out_.indptr.template as<int64_t>();
        for (int64_t i = begin_; i < end_; ++i) indptr[i + 1] += indptr[i];
        added_ = indptr[end_] - edge_count_;
        require(indptr[end_] < StampTable<Id>::kClaims && count_ + added_ < StampTable<Id>::kClaims,
                "the sample is too large: use smaller fanouts or fewer seeds");
        const int64_t edges = edge_count_ + added_, nodes = count_ + added_;
        out_.indices.grow(edges * sizeof(int32_t), edge_count_ * sizeof(int32_t));
        if (out_.positions.template as<void>()) out_.positions.grow(edges * sizeof(int64_t), edge_count_ * sizeof(int64_t));
        out_.nodes.grow(nodes * sizeof(Id), count_ * sizeof(Id));
        if (kTrees) out_.trees.grow(nodes * sizeof(int32_t), count_ * sizeof(int32_t));
        return added_;
    }

    // Of the frontier: row i has the edges [offsets[i], offsets[i + 1]) of the sample.
    const int64_t* offsets() const { return out_.indptr.template as<int64_t>() + begin_; }
    int64_t first_edge() const { return edge_count_; }
    int64_t* positions() const { return out_.positions.template as<int64_t>(); }

    // Local ids of the hop's next keys, the first of which stands at `edge`: a node that is new gets the next one.
    void number(const Key* keys, int64_t n, int64_t edge) {
        Table& table = table_;
        table.reserve(count_, n, key_at());
        Id* nodes = out_.nodes.template as<Id>();
        int32_t* of_trees = trees();
        int32_t* indices = out_.indices.template as<int32_t>() + edge;
        int64_t next = count_;
        for (int64_t q = 0; q < n; ++q) {
            const int32_t local = table.find_or_add(keys[q], static_cast<int32_t>(next));
            if constexpr (kTrees) {  // overwritten unless it is new
                nodes[next] = static_cast<Id>(node_of(keys[q]));
                of_trees[next] = tree_of(keys[q]);
            } else {
                nodes[next] = keys[q];
            }
            next += local == next;
            indices[q] = local;
        }
        count_ = next;
    }

    // A node of its own for each of the hop's next keys: nodes stand in the order of their edges.
    void append(const Key* keys, int64_t n, int64_t edge) {
        const int64_t first = out_.node_counts[0] + edge;
        for (int64_t q = 0; q < n; ++q) {
            out_.nodes.template as<Id>()[first + q] = static_cast<Id>(node_of(keys[q]));
            trees()[first + q] = tree_of(keys[q]);
            out_.indices.template as<int32_t>()[edge + q] = static_cast<int32_t>(first + q);
        }
    }
    void close_appended() { count_ += added_; }

    // The same as `number` for all keys of the hop at once, by many threads where the table lets them.
    void number_all(const Key* keys, int parts, std::vector<uint8_t>& is_new) {
        if constexpr (std::is_same_v<Table, StampTable<Id>>) {
            if (parts > 1) {
                int32_t* indices = out_.indices.template as<int32_t>() + edge_count_;
                count_ += relabel(table_, keys, added_, parts, count_, is_new, out_.nodes.template as<Id>(), indices);
                return;
            }
        }
        for (int64_t e = 0; e < added_; e += 512) {
            const int64_t n = std::min<int64_t>(512, added_ - e);
            for (int64_t q = 0; q < n; ++q) table_.prefetch(keys[e + q]);
            number(keys + e, n, edge_count_ + e);
        }
    }

    void close_hop() {
        out_.node_counts.push_back(count_ - end_);
        out_.edge_counts.push_back(added_);
        edge_count_ += added_;
        begin_ = end_;
        end_ = count_;
    }

    // The sample, once: nothing is added afterwards.
    SampleResult take() { return std::move(out_); }

private:
    int32_t* trees() const { return out_.trees.template as<int32_t>(); }
    auto key_at() const {
        return [this](int64_t i) { return key_of(out_.nodes.template as<Id>()[i], kTrees ? trees()[i] : 0); };
    }

    Table& table_;
    SampleResult out_;
    int64_t begin_ = 0, end_ = 0;  // of the frontier
    int64_t count_ = 0;            // nodes so far
    int64_t edge_count_ = 0;       // edges of the hops before
    int64_t added_ = 0;            // edges of this one
};

}  // namespace headrace
