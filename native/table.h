// Which local id each node (or node of a tree) has in a sample: by an array over all nodes, or by hashing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common.h"
#include "memory.h"

namespace headrace {

constexpr int64_t kMost = int64_t{1} << 30;  // nodes or edges of one sample

// Which local id each node has in this batch. Entries of earlier batches lie below `base` and count as absent, so
// nothing is cleared between batches.

template <class Id>
class StampTable {
public:
    using Key = Id;
    void begin(int64_t nodes) {
        if (stamp_.size() != nodes || base_ > kMost) {
            if (stamp_.size() != nodes) stamp_ = Array<int32_t>(nodes);
            std::fill_n(stamp_.data(), nodes, int32_t{-1});
            base_ = 0;
        }
    }
    void end(int64_t used) { base_ += static_cast<int32_t>(used); }
    template <class KeyAt>
    void reserve(int64_t, int64_t, KeyAt) {}
    void prefetch(Id node) const { headrace::prefetch(stamp_.data() + node); }
    // The local id of `node`: its own, or `next` if it is new.
    int32_t find_or_add(Id node, int32_t next) {
        int32_t& s = stamp_[node];
        if (s >= base_) return s - base_;
        s = base_ + next;
        return next;
    }
    // For many threads: remember the earliest position at which a node not yet in the sample appears.
    void claim(Id node, int32_t position) {
        int32_t* s = stamp_.data() + node;
        const int32_t mine = base_ + pending(position);
        int32_t seen = __atomic_load_n(s, __ATOMIC_RELAXED);
        while (seen < base_ || seen > mine)
            if (__atomic_compare_exchange_n(s, &seen, mine, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
    }
    bool claimed(Id node, int32_t position) const { return stamp_[node] == base_ + pending(position); }
    void set(Id node, int32_t local) { stamp_[node] = base_ + local; }
    int32_t get(Id node) const { return stamp_[node] - base_; }
    int64_t bytes() const { return stamp_.size() * 4; }
    static constexpr int64_t kClaims = kMost / 2;  // base + local id or pending position stay below 2^31

private:
    static int32_t pending(int32_t position) { return static_cast<int32_t>(kMost / 2) + position; }
    Array<int32_t> stamp_;
    int32_t base_ = 0;
};

template <class Key_>
class HashTable {
public:
    using Key = Key_;
    void begin(int64_t) {
        if (cells_.size() == 0 || base_ > kMost) rebuild(std::max<int64_t>(cells_.size(), 1 << 12));
    }
    void end(int64_t used) { base_ += static_cast<int32_t>(used); }
    // Room for `more` keys beside the `count` that are in, key_at(i) being the one with local id i.
    template <class KeyAt>
    void reserve(int64_t count, int64_t more, KeyAt key_at) {
        int64_t size = cells_.size();
        while (size < 2 * (count + more)) size *= 2;
        if (size == cells_.size()) return;
        rebuild(size);
        for (int64_t i = 0; i < count; ++i) find_or_add(key_at(i), static_cast<int32_t>(i));
    }
    void prefetch(Key key) const { headrace::prefetch(cells_.data() + slot(key)); }
    int32_t find_or_add(Key key, int32_t next) {
        for (uint64_t at = slot(key);; at = (at + 1) & mask_) {
            Cell& cell = cells_[static_cast<int64_t>(at)];
            if (cell.value < base_) {
                cell = {key, base_ + next};
                return next;
            }
            if (cell.key == key) return cell.value - base_;
        }
    }
    int64_t bytes() const { return cells_.size() * static_cast<int64_t>(sizeof(Cell)); }

private:
    struct Cell {
        Key key;
        int32_t value;
    };
    uint64_t slot(Key key) const {
        return (static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull >> 32) & mask_;
    }
    void rebuild(int64_t size) {
        cells_ = Array<Cell>(size);
        mask_ = static_cast<uint64_t>(size) - 1;
        for (int64_t i = 0; i < size; ++i) cells_[i].value = -1;
        base_ = 0;
    }
    Array<Cell> cells_;
    uint64_t mask_ = 0;
    int32_t base_ = 0;
};

// Disjoint trees: a key is a node and its tree. The tree stands in the low bits, which the hash spreads furthest.
using TreeTable = HashTable<uint64_t>;
constexpr int kTreeBits = 24;
constexpr int64_t kMostTrees = (int64_t{1} << kTreeBits) - 1;         // tree + 1 fits beside the hop in a Philox counter
constexpr int64_t kMostTreeNodes = int64_t{1} << (64 - kTreeBits);    // ids that fit beside the tree
inline uint64_t tree_key(uint64_t node, uint64_t tree) { return node << kTreeBits | tree; }
inline uint64_t node_of(uint64_t key) { return key >> kTreeBits; }
inline int32_t tree_of(uint64_t key) { return static_cast<int32_t>(key & kMostTrees); }

}  // namespace headrace
