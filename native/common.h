// What every kernel shares: errors, 64-bit sizes, prefetching and the division of work over threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

namespace headrace {

inline void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

// A range of `total` items cut into `parts` nearly equal pieces: where piece `i` begins.
inline int64_t cut(int64_t total, int64_t parts, int64_t i) {
    return static_cast<int64_t>(static_cast<__int128>(total) * i / parts);
}

// Threads worth starting for `items` units of work, one per `grain` at the most.
inline int useful_threads(int threads, int64_t items, int64_t grain) {
    return static_cast<int>(std::clamp<int64_t>(items / grain, 1, std::clamp(threads, 1, 1024)));
}

// Exceptions must not leave an OpenMP region or a thread: the first message or exception is kept, and thrown after it.
class FirstError {
public:
    void set(const char* what) noexcept {
        if (first()) what_ = what;
    }
    // Calls body, which may allocate: whatever it throws is kept.
    template <class Body>
    void guard(Body&& body) noexcept {
        try {
            body();
        } catch (...) {
            if (first()) thrown_ = std::current_exception();
        }
    }
    bool any() const noexcept { return __atomic_load_n(&any_, __ATOMIC_RELAXED); }
    // For whoever comes after all threads are done.
    void rethrow() const {
        if (thrown_) std::rethrow_exception(thrown_);
        if (what_) throw std::invalid_argument(what_);
    }

private:
    bool first() noexcept { return !__atomic_exchange_n(&any_, true, __ATOMIC_RELAXED); }
    bool any_ = false;
    const char* what_ = nullptr;
    std::exception_ptr thrown_;
};

}  // namespace headrace
