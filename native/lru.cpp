#include "lru.h"

#include <algorithm>
#include <memory>

#include "common.h"
#include "memory.h"

namespace headrace {
namespace {

constexpr int64_t kWarmUp = 16;             // capacities read at the most before reads are counted
constexpr int64_t kLeastCounted = 1 << 16;  // reads of a window, however small the cache

// A ring of slots from the newest to the oldest; `slot_of` finds a row's.
class Lru {
public:
    Lru(int64_t rows, int32_t capacity) : slot_of_(rows), row_(capacity), newer_(capacity), older_(capacity), capacity_(capacity) {
        std::fill_n(slot_of_.data(), rows, kNone);
    }

    bool full() const { return used_ == capacity_; }

    void clear() {
        for (int32_t s = 0; s < used_; ++s) slot_of_[row_[s]] = kNone;
        used_ = 0;
        newest_ = kNone;
    }

    void ahead(int64_t row) const { prefetch(&slot_of_[row]); }

    bool read(int64_t row) {  // whether it was there
        int32_t slot = slot_of_[row];
        const bool hit = slot != kNone;
        if (hit) {
            if (slot == newest_) return true;
            unlink(slot);
        } else {
            if (full()) {
                slot = newer_[newest_];  // the ring closes: beyond the newest is the oldest
                unlink(slot);
                slot_of_[row_[slot]] = kNone;
            } else {
                slot = used_++;
            }
            row_[slot] = row;
            slot_of_[row] = slot;
        }
        link(slot);
        return hit;
    }

private:
    static constexpr int32_t kNone = -1;

    void unlink(int32_t slot) {
        if (newer_[slot] == slot) {
            newest_ = kNone;
            return;
        }
        older_[newer_[slot]] = older_[slot];
        newer_[older_[slot]] = newer_[slot];
        if (newest_ == slot) newest_ = older_[slot];
    }

    void link(int32_t slot) {
        if (newest_ == kNone) {
            newer_[slot] = older_[slot] = slot;
        } else {
            const int32_t oldest = newer_[newest_];
            older_[slot] = newest_;
            newer_[slot] = oldest;
            newer_[newest_] = slot;
            older_[oldest] = slot;
        }
        newest_ = slot;
    }

    Array<int32_t> slot_of_;
    Array<int64_t> row_;
    Array<int32_t> newer_, older_;
    const int32_t capacity_;
    int32_t used_ = 0, newest_ = kNone;
};

// Reads `count` rows of each window once the cache is warm; with a count of 0 everything, from a cold cache.
template <class Id>
Reads simulate(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, int32_t slots, int64_t windows,
               int64_t count, int threads) {
    const bool whole = count == 0;
    threads = useful_threads(threads, windows, 1);
    int64_t counted = 0, missed = 0;
    FirstError error;
#pragma omp parallel num_threads(threads) reduction(+ : counted, missed)
    {
        std::unique_ptr<Lru> own;
        error.guard([&] { own = std::make_unique<Lru>(rows, slots); });
#pragma omp for schedule(dynamic, 1)
        for (int64_t w = 0; w < windows; ++w) {
            if (error.any()) continue;
            Lru& cache = *own;
            cache.clear();
            int64_t read = 0, mine = 0;
            bool counting = whole;
            for (int64_t i = cut(rows, windows, w); i < rows && (whole || mine < count); ++i) {
                const int64_t v = order ? order[i] : i;
                for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) {
                    if (e + 8 < indptr[v + 1]) cache.ahead(indices[e + 8]);
                    counting = counting || cache.full() || read++ >= kWarmUp * slots;
                    const bool hit = cache.read(indices[e]);
                    mine += counting;
                    missed += counting && !hit;
                }
            }
            counted += mine;
        }
    }
    error.rethrow();
    return {counted, missed};
}

}  // namespace

template <class Id>
Reads simulate_lru(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, int64_t capacity, int64_t windows,
                   int threads) {
    const int32_t slots = static_cast<int32_t>(std::min<int64_t>({capacity, std::max<int64_t>(rows, 1), INT32_MAX}));
    const int64_t count = std::max<int64_t>(slots, kLeastCounted);
    if (windows <= indptr[rows] / (kWarmUp * slots + count))
        return simulate(indptr, indices, rows, order, slots, windows, count, threads);
    return simulate(indptr, indices, rows, order, slots, 1, 0, threads);
}

template Reads simulate_lru(const int64_t*, const int32_t*, int64_t, const int64_t*, int64_t, int64_t, int);
template Reads simulate_lru(const int64_t*, const int64_t*, int64_t, const int64_t*, int64_t, int64_t, int);

}  // namespace headrace
