#include "cache.h"

#include <atomic>

namespace headrace {
namespace {

constexpr int64_t kAhead = 16;  // lookups under way: enough to hide memory's latency

}  // namespace

Cache::Cache(int64_t nodes, int64_t capacity) : number_([] {
    static std::atomic<uint64_t> caches{0};
    return ++caches;
}()) {
    require(nodes >= 0, "nodes must not be negative");
    require(capacity >= 0 && capacity < INT32_MAX, "capacity must be from 0 to 2**31 - 2 rows");
    where_.assign(static_cast<size_t>(nodes), kAbsent);
    slots_.resize(static_cast<size_t>(capacity));
}

void Cache::check(const int64_t* ids, int64_t count) const {
    require(count < INT32_MAX, "a batch has at most 2**31 - 2 ids");
    const int64_t nodes = static_cast<int64_t>(where_.size());
    for (int64_t i = 0; i < count; ++i) require(ids[i] >= 0 && ids[i] < nodes, "id out of range");
}

int32_t Cache::begin_fetch(int64_t node, Access& access) const {
    const auto row = static_cast<int32_t>(access.fetch.size());
    access.fetch.push_back(node);
    access.fill.push_back(-1);
    return row;
}

void Cache::hold(int32_t slot, Access& access) {
    Slot& s = slots_[slot];
    if (s.held_by == batch_) return;
    s.held_by = batch_;
    access.held.push_back(slot);
    if (s.pins++ == 0) {
        --evictable_;
        pin(slot, true);
    }
}

int32_t Cache::take_free() {
    if (!free_.empty()) {
        const int32_t slot = free_.back();
        free_.pop_back();
        ++held_, ++evictable_;
        return slot;
    }
    if (touched_ == capacity()) return -1;
    ++held_, ++evictable_;
    return static_cast<int32_t>(touched_++);
}

void Cache::place(int32_t slot, int32_t row, Access& access) {
    Slot& s = slots_[slot];
    s.node = access.fetch[row];
    s.fetched_by = batch_;
    s.row = row;
    s.filled = false;
    where_[s.node] = slot;
    access.fill[row] = slot;
}

void Cache::drop(int32_t slot) {
    Slot& s = slots_[slot];
    leave(slot);
    where_[s.node] = kAbsent;
    s.node = -1;
    s.filled = false;
    free_.push_back(slot);
    --held_, --evictable_;
}

void Cache::finish(Access& access, bool filled) {
    require(access.cache == number_, "this access was finished before, or is none of this cache");
    access.cache = 0;
    for (const int32_t slot : access.held)
        if (--slots_[slot].pins == 0) {
            ++evictable_;
            pin(slot, false);
        }
    for (const int32_t slot : access.fill) {
        if (slot < 0) continue;
        if (filled) slots_[slot].filled = true;
        else drop(slot);
    }
}

Access Cache::find(const int64_t* ids, int64_t count) {
    check(ids, count);
    ++batch_;
    Access access;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t slot = where_[ids[i]];
        if (slot < 0 || slots_[slot].fetched_by == batch_) continue;
        slots_[slot].fetched_by = batch_;
        access.fetch.push_back(ids[i]);
        access.fill.push_back(slot);
    }
    return access;
}

void Cache::forget(const int32_t* slots, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        require(slots[i] >= 0 && slots[i] < capacity() && slots_[slots[i]].node >= 0, "there is no row in this slot");
        require(slots_[slots[i]].pins == 0, "this slot is in use");
        drop(slots[i]);
    }
}

OnlineCache::OnlineCache(const std::string& policy, int64_t nodes, int64_t capacity)
    : Cache(nodes, capacity), policy_(make_policy(policy, slots_, nodes)) {}

int32_t OnlineCache::room(Access& access) {
    const int32_t free = take_free();
    if (free >= 0 || evictable_ == 0) return free;
    const int32_t slot = policy_->evict();
    where_[slots_[slot].node] = kAbsent;
    access.evicted.push_back(slots_[slot].node);
    return slot;
}

Access OnlineCache::access(const int64_t* ids, int64_t count) {
    check(ids, count);
    ++batch_;
    Access access;
    access.source.resize(static_cast<size_t>(count));
    // Rows that are there come first, whatever their order: none may make room for another of its own batch before it is read.
    std::vector<int32_t> missing;
    for (int64_t i = 0; i < std::min(kAhead, count); ++i) request(ids, count, i);
    for (int64_t i = 0; i < count; ++i) {
        request(ids, count, i + kAhead);
        const int32_t at = where_[ids[i]];
        if (at < 0 || !slots_[at].filled) {
            missing.push_back(static_cast<int32_t>(i));
            continue;
        }
        policy_->hit(at);
        hold(at, access);
        access.source[i] = at;
        ++access.hits;
    }
    for (const int32_t i : missing) {
        const int64_t node = ids[i];
        const int32_t at = where_[node];
        if (at >= 0) {
            Slot& s = slots_[at];
            policy_->hit(at);
            if (s.fetched_by != batch_) {  // another gather is fetching it: waiting could be for long, so fetch it too
                s.fetched_by = batch_;
                s.row = begin_fetch(node, access);
            } else if (access.fill[s.row] >= 0) {
                ++access.hits;
            }
            access.source[i] = -1 - s.row;
        } else if (at != kAbsent) {
            access.source[i] = at + 1;  // -1 - row
        } else {
            const int32_t row = begin_fetch(node, access);
            access.source[i] = -1 - row;
            const int32_t slot = room(access);
            if (slot < 0) {
                where_[node] = fetched_as(row);
            } else {
                place(slot, row, access);
                policy_->insert(slot, node);
                hold(slot, access);
            }
        }
    }
    for (const int64_t node : access.fetch)
        if (where_[node] < kAbsent) where_[node] = kAbsent;
    access.cache = number_;
    return access;
}

}  // namespace headrace
