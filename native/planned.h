// A cache that knows the coming batches.
#pragma once

#include <deque>

#include "cache.h"
#include "queue.h"

namespace headrace {

// Belady's rule (1966) over a window of announced batches: the row whose next use lies furthest ahead makes room, one with no
// use in the window first; a row that would be the first to go is not taken in. Where the window reaches the end of the trace
// no cache of this size has more hits. A batch is one moment: only the first of an id that comes twice in it can miss.
//
// Every announced id knows how far ahead its node comes next; every slot stands in a bucket by the batch of its next use. Both
// are kept up in constant time per access, plus one walk down the window per batch.
class PlannedCache : public Cache {
public:
    PlannedCache(int64_t nodes, int64_t capacity, int64_t lookahead);
    void announce(const int64_t* ids, int64_t count);
    void restart();  // forgets what was announced
    int64_t announced() const { return static_cast<int64_t>(window_.size()); }
    // Where `ids` differ from the next announced batch, or -1.
    int64_t first_difference(const int64_t* ids, int64_t count) const;
    Access access(const int64_t* ids, int64_t count) override;

protected:
    void leave(int32_t slot) override { bucket(next_use_[slot]).take(links_, slot); }

private:
    static constexpr int64_t kNever = INT64_MAX;
    struct Batch {
        std::vector<int64_t> ids;
        std::vector<int32_t> ahead;  // batches until the id comes again; 0: not in the window
    };
    struct Place {  // of an announced id
        int32_t batch, position;
    };
    Queue& bucket(int64_t use) { return use == kNever ? never_ : buckets_[use % static_cast<int64_t>(buckets_.size())]; }
    void enter(int32_t slot, int64_t use) {
        next_use_[slot] = use;
        bucket(use).push(links_, slot);
    }
    int32_t furthest(int64_t after);
    void keep(int32_t row, int64_t use, Access& access);

    int64_t lookahead_;
    int64_t first_ = 0;  // the number of the next batch
    std::deque<Batch> window_;
    std::vector<Place> last_;  // per node: where it was announced last
    Links links_;
    std::vector<int64_t> next_use_;  // per slot
    std::vector<Queue> buckets_;     // by next use, round and round
    Queue never_;
    int64_t walk_ = 0;               // no evictable slot is used later, those in never_ apart
    std::vector<int32_t> aside_;     // slots in use by other batches, out of their buckets for the length of an access
};

}  // namespace headrace
