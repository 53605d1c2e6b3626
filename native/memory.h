// Uninitialised arrays, on huge pages where they are large: fewer page faults, fewer TLB misses.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace headrace {

inline void* allocate_bytes(size_t bytes) {
    constexpr size_t huge = size_t{2} << 20;
    void* memory = nullptr;
    const size_t alignment = bytes >= huge ? huge : 64;
    if (posix_memalign(&memory, alignment, bytes ? bytes : 64) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (bytes >= huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

template <class T>
class Array {
public:
    Array() = default;
    explicit Array(int64_t size)
        : data_(static_cast<T*>(allocate_bytes(static_cast<size_t>(size) * sizeof(T)))), size_(size) {}
    Array(Array&& other) noexcept { swap(other); }
    Array& operator=(Array&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Array() { std::free(data_); }
    T* data() const { return data_; }
    int64_t size() const { return size_; }
    T& operator[](int64_t i) const { return data_[i]; }
    T* detach() { return std::exchange(data_, nullptr); }
    void reset() { *this = Array(); }

private:
    void swap(Array& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }
    T* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace headrace
