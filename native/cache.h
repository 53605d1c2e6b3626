// Caches of rows: which slot holds which node, and which one makes room. The rows themselves lie elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common.h"

namespace headrace {

// What a batch of ids came to.
struct Access {
    std::vector<int32_t> source;   // per id: the slot that holds its row, or -1 - k for row k of what is fetched
    std::vector<int64_t> fetch;    // distinct ids to fetch
    std::vector<int32_t> fill;     // per fetched id: the slot to keep it in, once `source` was read; or -1
    std::vector<int32_t> held;     // slots that stay as they are until `finish`
    std::vector<int64_t> evicted;  // nodes that made room, in order
    int64_t hits = 0;
    uint64_t cache = 0;            // whose batch it is, until it is finished; 0: nobody's
};

struct Slot {
    int64_t node = -1;        // -1: free
    uint64_t held_by = 0;     // the last batch that holds, or held, it
    uint64_t fetched_by = 0;  // the last batch that fetches its node, as row `row`
    int32_t row = 0;
    int32_t pins = 0;     // batches that hold it
    bool filled = false;  // the row is there, not only promised
};

// Slots and the nodes in them. A node finds its slot by an array over all nodes: 4 bytes a node, which is 1 % of a row of 400
// bytes, for one read per lookup that can be requested ahead. (The hash table of table.h forgets everything at once, between
// batches; a cache has to forget one node at a time.)
class Cache {
public:
    Cache(int64_t nodes, int64_t capacity);
    virtual ~Cache() = default;
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    virtual Access access(const int64_t* ids, int64_t count) = 0;
    // The rows to keep have been written (or not, and are forgotten): lets go of what the batch held.
    void finish(Access& access, bool filled);
    // The distinct ids that are in the cache, in `fetch`, and their slots, in `fill`. Counts as no access.
    Access find(const int64_t* ids, int64_t count);
    void forget(const int32_t* slots, int64_t count);
    int64_t rows_held() const { return held_; }
    int64_t capacity() const { return static_cast<int64_t>(slots_.size()); }

protected:
    static constexpr int32_t kAbsent = -1;
    static int32_t fetched_as(int32_t row) { return -2 - row; }  // what `where_` says of a node that bypasses, for this batch

    void check(const int64_t* ids, int64_t count) const;
    void request(const int64_t* ids, int64_t count, int64_t i) const {
        if (i < count) prefetch(where_.data() + ids[i]);
    }
    int32_t begin_fetch(int64_t node, Access& access) const;
    void hold(int32_t slot, Access& access);
    int32_t take_free();  // or -1
    void place(int32_t slot, int32_t row, Access& access);
    void drop(int32_t slot);
    virtual void leave(int32_t slot) = 0;          // `slot` is about to be free
    virtual void pin(int32_t, bool) {}             // the first hold on it began, or the last ended

    std::vector<int32_t> where_;  // node -> slot, kAbsent or fetched_as(row)
    std::vector<Slot> slots_;
    std::vector<int32_t> free_;
    int64_t touched_ = 0;  // slots from here on were never used
    int64_t held_ = 0;     // rows in the cache
    int64_t evictable_ = 0;
    uint64_t batch_ = 0;
    const uint64_t number_;  // of this cache, among all that there were: from 1 on
};

// Which slot makes room. It sees the slots, so that it can pass over those that are pinned.
class Policy {
public:
    virtual ~Policy() = default;
    virtual void hit(int32_t slot) = 0;
    virtual void insert(int32_t slot, int64_t node) = 0;
    virtual int32_t evict() = 0;  // takes out a slot without pins, of which there is one at least
    virtual void remove(int32_t slot) = 0;
    virtual void pin(int32_t, bool) {}
};

// "sieve", "lru", "clock" or "s3fifo".
std::unique_ptr<Policy> make_policy(const std::string& name, const std::vector<Slot>& slots, int64_t nodes);

// A cache that learns from the past. Of a batch the ids that are there come first, then the others, each in order; what a batch
// uses stays until it is finished.
class OnlineCache : public Cache {
public:
    OnlineCache(const std::string& policy, int64_t nodes, int64_t capacity);
    Access access(const int64_t* ids, int64_t count) override;

protected:
    void leave(int32_t slot) override { policy_->remove(slot); }
    void pin(int32_t slot, bool on) override { policy_->pin(slot, on); }

private:
    int32_t room(Access& access);
    std::unique_ptr<Policy> policy_;
};

}  // namespace headrace
