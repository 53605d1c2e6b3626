// Uninitialized memory that is resident where it is touched and nowhere else: a large block comes from the system and goes
// back to it, and the largest are on huge pages (fewer page faults, fewer TLB misses).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace headrace {

constexpr size_t kHuge = size_t{8} << 20;      // below this the slack of a last huge page outweighs their gain
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kMapped = kHuge;              // AddressSanitizer watches what malloc gives, and no mappings
#else
constexpr size_t kMapped = size_t{256} << 10;  // from here on a block is a mapping of its own
#endif
constexpr size_t kHugePage = size_t{2} << 20;

// Bytes of `size` elements; one array or object that is larger than half of all addresses is out of memory.
inline size_t bytes_of(int64_t size, size_t element) {
    size_t bytes = 0;
    if (size < 0 || __builtin_mul_overflow(static_cast<size_t>(size), element, &bytes) || bytes > PTRDIFF_MAX) throw std::bad_alloc();
    return bytes;
}

// The product of sizes for an array to be made; one that does not fit 64 bits is out of memory.
template <class... Sizes>
int64_t product_of(Sizes... sizes) {
    int64_t product = 1;
    if ((__builtin_mul_overflow(product, static_cast<int64_t>(sizes), &product) || ...)) throw std::bad_alloc();
    return product;
}

inline void* allocate_bytes(size_t bytes) {
    if (bytes < kMapped || bytes >= kHuge) {
        void* memory = nullptr;
        if (posix_memalign(&memory, bytes >= kHuge ? kHugePage : 64, bytes ? bytes : 64) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (bytes >= kHuge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        return memory;
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
}

inline void release_bytes(void* memory, size_t bytes) noexcept {
    if (bytes < kMapped || bytes >= kHuge)
        std::free(memory);
    else
        munmap(memory, bytes);
}

template <class T>
class Array {
public:
    Array() = default;
    explicit Array(int64_t size)
        : data_(static_cast<T*>(allocate_bytes(bytes_of(size, sizeof(T))))), size_(size) {}
    Array(Array&& other) noexcept { swap(other); }
    Array& operator=(Array&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Array() {
        if (data_) release_bytes(data_, bytes());
    }
    T* data() const { return data_; }
    int64_t size() const { return size_; }
    size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
    T& operator[](int64_t i) const { return data_[i]; }
    void reset() { Array().swap(*this); }

private:
    void swap(Array& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }
    T* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace headrace
