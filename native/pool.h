// Memory that outlives its user: a buffer goes back to the pool when the last tensor over it dies.
// A fresh large allocation costs more than the gather that fills it (page faults), a warm one nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "forked.h"

namespace headrace {

struct PoolStats {
    int64_t limit, idle, in_use, peak, hits, misses;
};

class Pool : public std::enable_shared_from_this<Pool> {
public:
    explicit Pool(int64_t limit) : limit_(limit) {}
    ~Pool();

    // At least `bytes` bytes, 64-byte aligned. Rounded up so that batches of similar size share buffers.
    void* acquire(size_t bytes);
    void release(void* memory) noexcept;
    PoolStats stats() const;
    void clear();  // free what is idle

private:
    struct Slab {
        void* memory;
        size_t bytes;
    };
    mutable ForkedMutex mutex_;
    std::vector<Slab> idle_, used_;
    int64_t limit_, idle_bytes_ = 0, used_bytes_ = 0, peak_ = 0, hits_ = 0, misses_ = 0;
};

// A buffer of a pool, which it goes back to.
class Buffer {
public:
    Buffer() = default;
    Buffer(std::shared_ptr<Pool> pool, size_t bytes)
        : pool_(std::move(pool)), memory_(pool_->acquire(bytes)), bytes_(bytes) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() {
        if (memory_) pool_->release(memory_);
    }
    template <class T>
    T* as() const {
        return static_cast<T*>(memory_);
    }
    size_t bytes() const { return bytes_; }
    const std::shared_ptr<Pool>& pool() const { return pool_; }
    void grow(size_t bytes, size_t keep);  // larger, with the first `keep` bytes preserved

private:
    void swap(Buffer& other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(memory_, other.memory_);
        std::swap(bytes_, other.bytes_);
    }
    std::shared_ptr<Pool> pool_;
    void* memory_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace headrace
