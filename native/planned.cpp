#include "planned.h"

namespace headrace {

PlannedCache::PlannedCache(int64_t nodes, int64_t capacity, int64_t lookahead)
    : Cache(nodes, capacity), lookahead_(lookahead), last_(static_cast<size_t>(nodes), Place{-1, 0}),
      links_(static_cast<size_t>(capacity)), next_use_(static_cast<size_t>(capacity)) {
    require(lookahead >= 1 && lookahead < INT32_MAX, "lookahead must be from 1 to 2**31 - 2 batches");
    buckets_.resize(static_cast<size_t>(lookahead) + 1);
}

void PlannedCache::announce(const int64_t* ids, int64_t count) {
    check(ids, count);
    require(announced() <= lookahead_, "the window is full");
    const int64_t batch = first_ + announced();
    require(batch < INT32_MAX, "a cache can be told of at most 2**31 - 2 batches in its life");
    window_.push_back({std::vector<int64_t>(ids, ids + count), std::vector<int32_t>(static_cast<size_t>(count), 0)});
    for (int64_t i = 0; i < count; ++i) {
        if (i + 16 < count) prefetch(last_.data() + ids[i + 16]);
        Place& last = last_[ids[i]];
        if (last.batch == batch) continue;  // an id that comes twice in a batch is followed from its first place
        if (last.batch >= first_) {
            window_[static_cast<size_t>(last.batch - first_)].ahead[last.position] = static_cast<int32_t>(batch - last.batch);
        } else if (const int32_t slot = where_[ids[i]]; slot >= 0) {
            leave(slot);
            enter(slot, batch);
        }
        last = {static_cast<int32_t>(batch), static_cast<int32_t>(i)};
    }
}

void PlannedCache::restart() {
    first_ += announced();
    window_.clear();
    for (int64_t slot = 0; slot < touched_; ++slot)
        if (slots_[slot].node >= 0 && next_use_[slot] != kNever) {
            leave(static_cast<int32_t>(slot));
            enter(static_cast<int32_t>(slot), kNever);
        }
}

int64_t PlannedCache::first_difference(const int64_t* ids, int64_t count) const {
    require(!window_.empty(), "no batch is announced");
    const std::vector<int64_t>& planned = window_.front().ids;
    const int64_t both = std::min(count, static_cast<int64_t>(planned.size()));
    const int64_t same = std::mismatch(ids, ids + both, planned.begin()).first - ids;
    return same == count && same == static_cast<int64_t>(planned.size()) ? -1 : same;
}

// The slot with the furthest next use, later than `after`, that no other batch holds; or -1.
int32_t PlannedCache::furthest(int64_t after) {
    const auto pick = [&](Queue& queue) {
        while (queue.size) {
            const int32_t slot = queue.oldest;
            if (slots_[slot].pins == (slots_[slot].held_by == batch_)) return slot;
            queue.take(links_, slot);
            aside_.push_back(slot);
        }
        return int32_t{-1};
    };
    if (const int32_t slot = pick(never_); slot >= 0) return slot;
    for (; walk_ > after; --walk_)
        if (const int32_t slot = pick(bucket(walk_)); slot >= 0) return slot;
    return -1;
}

// Gives row `row` a slot, if one is free or goes to a row used later.
void PlannedCache::keep(int32_t row, int64_t use, Access& access) {
    if (use == kNever) return;
    int32_t slot = take_free();
    if (slot < 0) {
        slot = furthest(use);
        if (slot < 0) return;
        const Slot& s = slots_[slot];
        if (s.fetched_by == batch_ && !s.filled) access.fill[s.row] = -1;  // taken in a moment ago
        else access.evicted.push_back(s.node);
        leave(slot);
        where_[s.node] = kAbsent;
    }
    place(slot, row, access);
    enter(slot, use);
    hold(slot, access);
}

Access PlannedCache::access(const int64_t* ids, int64_t count) {
    require(first_difference(ids, count) < 0, "the ids are not those of the next announced batch");
    ++batch_;
    const Batch batch = std::move(window_.front());
    window_.pop_front();
    const int64_t now = first_++;
    walk_ = now + lookahead_;
    Access access;
    access.source.resize(static_cast<size_t>(count));
    std::vector<int64_t> use;  // next one of every row to fetch
    // Hits first, whatever their order: a row that is there must not make room for one of its own batch before it is read.
    for (int64_t i = 0; i < count; ++i) {
        request(ids, count, i + 16);
        const int64_t node = ids[i], next = batch.ahead[i] ? now + batch.ahead[i] : kNever;
        const int32_t at = where_[node];
        if (at >= 0) {
            Slot& s = slots_[at];
            if (next_use_[at] == now) {
                leave(at);
                enter(at, next);
            }
            if (s.filled) {
                hold(at, access);
                access.source[i] = at;
                continue;
            }
            if (s.fetched_by != batch_) {  // another gather is fetching it
                s.fetched_by = batch_;
                s.row = begin_fetch(node, access);
                use.push_back(kNever);
            }
            access.source[i] = -1 - s.row;
        } else if (at != kAbsent) {
            access.source[i] = at + 1;  // -1 - row
        } else {
            const int32_t row = begin_fetch(node, access);
            use.push_back(next);
            where_[node] = fetched_as(row);
            access.source[i] = -1 - row;
        }
    }
    for (size_t row = 0; row < access.fetch.size(); ++row) {
        int32_t& at = where_[access.fetch[row]];
        if (at >= 0) continue;
        at = kAbsent;
        keep(static_cast<int32_t>(row), use[row], access);
    }
    for (const int32_t slot : aside_) enter(slot, next_use_[slot]);
    aside_.clear();
    access.hits = count - static_cast<int64_t>(access.fetch.size());
    access.cache = number_;
    return access;
}

}  // namespace headrace
