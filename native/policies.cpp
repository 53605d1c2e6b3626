// The policies of an online cache, one class each. All of them pass over pinned slots; what that does to a queue is said there.
#include <algorithm>

#include "cache.h"
#include "queue.h"

namespace headrace {
namespace {

// Least recently used. A pinned slot is in use now, so one that turns up at the end counts as just used.
class Lru : public Policy {
public:
    explicit Lru(const std::vector<Slot>& slots) : slots_(slots), links_(slots.size()) {}
    void hit(int32_t slot) override { queue_.renew(links_, slot); }
    void insert(int32_t slot, int64_t) override { queue_.push(links_, slot); }
    int32_t evict() override {
        while (slots_[queue_.oldest].pins) queue_.renew(links_, queue_.oldest);
        const int32_t slot = queue_.oldest;
        queue_.take(links_, slot);
        return slot;
    }
    void remove(int32_t slot) override { queue_.take(links_, slot); }

private:
    const std::vector<Slot>& slots_;
    Links links_;
    Queue queue_;
};

// CLOCK (Corbató 1969), or second chance: a hand goes round the slots and takes the first that was not used since it last
// came by. A row starts without the mark: being read once is no sign of being read again.
class Clock : public Policy {
public:
    explicit Clock(const std::vector<Slot>& slots) : slots_(slots), used_(slots.size()) {}
    void hit(int32_t slot) override { used_[slot] = 1; }
    void insert(int32_t slot, int64_t) override { used_[slot] = 0; }
    int32_t evict() override {
        for (;;) {
            const int32_t slot = hand_;
            hand_ = hand_ + 1 == static_cast<int32_t>(used_.size()) ? 0 : hand_ + 1;
            if (used_[slot]) used_[slot] = 0;
            else if (!slots_[slot].pins) return slot;
        }
    }
    void remove(int32_t) override {}

private:
    const std::vector<Slot>& slots_;
    std::vector<uint8_t> used_;
    int32_t hand_ = 0;
};

// SIEVE (Zhang et al., NSDI'24): rows stay in the order they came; the hand goes from the oldest to the newest, clears marks,
// and takes the first row without one. New rows come in ahead of the hand's way round, so a scan is sieved out quickly.
class Sieve : public Policy {
public:
    explicit Sieve(const std::vector<Slot>& slots) : slots_(slots), links_(slots.size()), visited_(slots.size()) {}
    void hit(int32_t slot) override { visited_[slot] = 1; }
    void insert(int32_t slot, int64_t) override {
        visited_[slot] = 0;
        queue_.push(links_, slot);
    }
    int32_t evict() override {
        for (;;) {
            const int32_t slot = hand_ >= 0 ? hand_ : queue_.oldest;
            hand_ = links_.newer[slot];
            if (visited_[slot]) {
                visited_[slot] = 0;
            } else if (!slots_[slot].pins) {
                queue_.take(links_, slot);
                return slot;
            }
        }
    }
    void remove(int32_t slot) override {
        if (hand_ == slot) hand_ = links_.newer[slot];
        queue_.take(links_, slot);
    }

private:
    const std::vector<Slot>& slots_;
    Links links_;
    std::vector<uint8_t> visited_;
    Queue queue_;
    int32_t hand_ = -1;  // -1: at the oldest
};

// S3-FIFO (Yang et al., SOSP'23): new rows pass a small queue of a tenth of the slots; those used more than once there, or
// wanted again soon after (the ghosts), enter the main queue, where a counter up to 3 buys as many more rounds. A pinned slot
// at a queue's end goes once more round it.
class S3Fifo : public Policy {
public:
    S3Fifo(const std::vector<Slot>& slots, int64_t nodes)
        : slots_(slots), links_(slots.size()), uses_(slots.size()), in_main_(slots.size()), ghost_(static_cast<size_t>(nodes)),
          small_size_(std::max<int64_t>(1, static_cast<int64_t>(slots.size()) / 10)),
          ghosts_(static_cast<int64_t>(slots.size()) - small_size_) {}

    void hit(int32_t slot) override { uses_[slot] = std::min<uint8_t>(uses_[slot] + 1, 3); }
    void insert(int32_t slot, int64_t node) override {
        uses_[slot] = 0;
        in_main_[slot] = is_ghost(node);
        ghost_[node] = 0;
        push(slot);
    }
    int32_t evict() override {
        for (;;) {
            bool small = queue_[0].size >= small_size_;
            if (evictable_[!small] == 0) small = !small;
            const int32_t slot = queue_[!small].oldest;
            if (small && uses_[slot] > 1) {
                take(slot);
                in_main_[slot] = 1;
                uses_[slot] = 0;
                push(slot);
            } else if (!small && uses_[slot] > 0) {
                --uses_[slot];
                queue_[1].renew(links_, slot);
            } else if (slots_[slot].pins) {
                queue_[!small].renew(links_, slot);
            } else {
                take(slot);
                if (small) ghost_[slots_[slot].node] = ++made_ ? made_ : ++made_;
                return slot;
            }
        }
    }
    void remove(int32_t slot) override { take(slot); }
    void pin(int32_t slot, bool on) override { evictable_[in_main_[slot]] += on ? -1 : 1; }

private:
    // The ghost queue is not kept as one: a node is in it if it was among the last `ghosts_` that left the small queue (and
    // did not come back). The count goes round after 2^32, when a node left alone all that time may be taken for a ghost.
    bool is_ghost(int64_t node) const { return ghost_[node] && static_cast<uint32_t>(made_ - ghost_[node]) < ghosts_; }
    void push(int32_t slot) {
        queue_[in_main_[slot]].push(links_, slot);
        evictable_[in_main_[slot]] += slots_[slot].pins == 0;
    }
    void take(int32_t slot) {
        queue_[in_main_[slot]].take(links_, slot);
        evictable_[in_main_[slot]] -= slots_[slot].pins == 0;
    }

    const std::vector<Slot>& slots_;
    Links links_;
    std::vector<uint8_t> uses_, in_main_;
    std::vector<uint32_t> ghost_;  // per node: how many ghosts there had been with it; 0: none
    int64_t small_size_, ghosts_;
    uint32_t made_ = 0;
    Queue queue_[2];            // small, main
    int64_t evictable_[2] = {0, 0};
};

}  // namespace

std::unique_ptr<Policy> make_policy(const std::string& name, const std::vector<Slot>& slots, int64_t nodes) {
    if (name == "lru") return std::make_unique<Lru>(slots);
    if (name == "clock") return std::make_unique<Clock>(slots);
    if (name == "sieve") return std::make_unique<Sieve>(slots);
    require(name == "s3fifo", "policy must be 'sieve', 'lru', 'clock' or 's3fifo'");
    return std::make_unique<S3Fifo>(slots, nodes);
}

}  // namespace headrace
