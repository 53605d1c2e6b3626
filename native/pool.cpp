#include "pool.h"

#include <algorithm>
#include <cstring>

#include "memory.h"

namespace headrace {
namespace {

// Next size of the form m * 2^k with m in 8..16: at most an eighth is wasted.
size_t rounded(size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    return std::max<size_t>(bytes, 1);  // exactly, so that an access behind the end is seen
#endif
    size_t step = 64;
    while (step * 16 < bytes) step *= 2;
    return std::max<size_t>((bytes + step - 1) / step * step, 64);
}

// Room for `count` elements, so that adding them throws nothing.
template <class T>
void make_room(std::vector<T>& of, size_t count) {
    if (of.capacity() < count) of.reserve(2 * count);
}

}  // namespace

Pool::~Pool() {
    for (const Slab& slab : idle_) release_bytes(slab.memory, slab.bytes);
    for (const Slab& slab : used_) release_bytes(slab.memory, slab.bytes);
}

void* Pool::acquire(size_t bytes) {
    const size_t size = rounded(bytes);
    std::lock_guard lock(mutex_);
    make_room(used_, used_.size() + 1);
    make_room(idle_, idle_.size() + used_.size() + 1);  // where all of them go when they are released
    size_t best = idle_.size();
    for (size_t i = 0; i < idle_.size(); ++i)  // the smallest that fits, unless it is far too large
        if (idle_[i].bytes >= size && idle_[i].bytes <= 2 * size &&
            (best == idle_.size() || idle_[i].bytes < idle_[best].bytes))
            best = i;
    Slab slab;
    if (best < idle_.size()) {
        slab = idle_[best];
        idle_[best] = idle_.back();
        idle_.pop_back();
        idle_bytes_ -= slab.bytes;
        ++hits_;
    } else {
        slab = {allocate_bytes(size), size};
        ++misses_;
    }
    used_.push_back(slab);
    used_bytes_ += slab.bytes;
    peak_ = std::max(peak_, used_bytes_ + idle_bytes_);
    return slab.memory;
}

void Pool::release(void* memory) noexcept {
    std::lock_guard lock(mutex_);
    for (size_t i = used_.size(); i-- > 0;)
        if (used_[i].memory == memory) {
            const Slab slab = used_[i];
            used_[i] = used_.back();
            used_.pop_back();
            used_bytes_ -= slab.bytes;
            idle_.push_back(slab);
            idle_bytes_ += slab.bytes;
            break;
        }
    while (idle_bytes_ > limit_) {  // the oldest idle buffers go first
        release_bytes(idle_.front().memory, idle_.front().bytes);
        idle_bytes_ -= idle_.front().bytes;
        idle_.erase(idle_.begin());
    }
}

PoolStats Pool::stats() const {
    std::lock_guard lock(mutex_);
    return {limit_, idle_bytes_, used_bytes_, peak_, hits_, misses_};
}

void Pool::clear() {
    std::lock_guard lock(mutex_);
    for (const Slab& slab : idle_) release_bytes(slab.memory, slab.bytes);
    idle_.clear();
    idle_bytes_ = 0;
}

void Buffer::grow(size_t bytes, size_t keep) {
    if (bytes <= bytes_) return;
    Buffer larger(pool_, bytes);
    if (keep) std::memcpy(larger.memory_, memory_, keep);
    swap(larger);
}

}  // namespace headrace
