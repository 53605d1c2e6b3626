#include "checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "vector.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

constexpr uint64_t p1 = 0x9E3779B185EBCA87ull, p2 = 0xC2B2AE3D27D4EB4Full, p3 = 0x165667B19E3779F9ull,
                   p4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kSmallPrime = 0x9E3779B1ull;

constexpr uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 33)) * p2;
    x = (x ^ (x >> 29)) * p3;
    return x ^ (x >> 32);
}

// Each stripe of a block has keys of its own, from one word further on, and so has the mixing after it.
constexpr auto kKeys = [] {
    std::array<uint64_t, 16 + 8> keys{};
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = mixed((i + 1) * p1);
    return keys;
}();

#if !defined(__SSE2__)
uint64_t word(const unsigned char* data) {
    uint64_t value = 0;
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(&value, data, sizeof(value));
    } else {
        for (size_t i = 0; i < sizeof(value); ++i) value |= static_cast<uint64_t>(data[i]) << (8 * i);
    }
    return value;
}
#endif

#if defined(__SSE2__)
// The same as `add_stripes`, on registers twice as wide. No lambdas here: they would not be compiled for AVX2.
__attribute__((target("avx2"))) void add_stripes_avx2(uint64_t* lanes, const unsigned char* data, size_t count,
                                                      const uint64_t* keys) {
    __m256i sums[2];
    for (int i = 0; i < 2; ++i) sums[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes + 4 * i));
    for (; count; --count, data += 64, ++keys) {
        _mm_prefetch(reinterpret_cast<const char*>(data + 2048), _MM_HINT_T0);
        for (int i = 0; i < 2; ++i) {
            const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 32 * i));
            const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + 4 * i));
            const __m256i keyed = _mm256_xor_si256(value, key);
            const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
            const __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
            sums[i] = _mm256_add_epi64(_mm256_add_epi64(sums[i], swapped), product);
        }
    }
    for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 4 * i), sums[i]);
}

#endif

// A lane adds the product of the halves of its keyed word, and the word of its neighbor: none is lost where a half is 0.
void add_stripes(uint64_t* lanes, const unsigned char* data, size_t count, const uint64_t* keys) {
#if defined(__SSE2__)
    static const bool wide = std::strcmp(vector_table().name, "baseline") != 0;
    if (wide) return add_stripes_avx2(lanes, data, count, keys);
    const auto at = [lanes](size_t i) { return reinterpret_cast<__m128i*>(lanes + 2 * i); };
    __m128i a = _mm_load_si128(at(0)), b = _mm_load_si128(at(1)), c = _mm_load_si128(at(2)), d = _mm_load_si128(at(3));
    const auto add = [](__m128i sum, const unsigned char* from, const uint64_t* key) {
        const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m128i keyed = _mm_xor_si128(value, _mm_loadu_si128(reinterpret_cast<const __m128i*>(key)));
        const __m128i product = _mm_mul_epu32(keyed, _mm_srli_epi64(keyed, 32));
        return _mm_add_epi64(_mm_add_epi64(sum, _mm_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2))), product);
    };
    for (; count; --count, data += 64, ++keys) {
        _mm_prefetch(reinterpret_cast<const char*>(data + 1024), _MM_HINT_T0);
        a = add(a, data, keys);
        b = add(b, data + 16, keys + 2);
        c = add(c, data + 32, keys + 4);
        d = add(d, data + 48, keys + 6);
    }
    _mm_store_si128(at(0), a), _mm_store_si128(at(1), b), _mm_store_si128(at(2), c), _mm_store_si128(at(3), d);
#else
    for (; count; --count, data += 64, ++keys) {
        for (size_t i = 0; i < 8; ++i) {
            const uint64_t value = word(data + 8 * i), keyed = value ^ keys[i];
            lanes[i ^ 1] += value;
            lanes[i] += (keyed & 0xFFFFFFFFull) * (keyed >> 32);
        }
    }
#endif
}

}  // namespace

Checksum::Checksum() {
    for (size_t i = 0; i < kLanes; ++i) lanes_[i] = mixed(p4 + i);
}

void Checksum::stripes(const unsigned char* data, size_t count) {
    while (count) {
        const size_t some = std::min(count, kBlock - at_);
        add_stripes(lanes_, data, some, kKeys.data() + at_);
        data += some * kStripe, count -= some, at_ += some;
        if (at_ < kBlock) return;
        for (size_t i = 0; i < kLanes; ++i)
            lanes_[i] = (lanes_[i] ^ (lanes_[i] >> 47) ^ kKeys[kBlock + i]) * kSmallPrime;
        at_ = 0;
    }
}

void Checksum::update(const unsigned char* data, size_t size) {
    total_ += size;
    if (held_) {
        const size_t taken = std::min(size, kStripe - held_);
        std::memcpy(rest_ + held_, data, taken);
        held_ += taken, data += taken, size -= taken;
        if (held_ < kStripe) return;
        stripes(rest_, 1);
        held_ = 0;
    }
    stripes(data, size / kStripe);
    held_ = size % kStripe;
    if (held_) std::memcpy(rest_, data + (size - held_), held_);
}

uint64_t Checksum::digest() const {
    Checksum last = *this;
    std::memset(last.rest_ + held_, 0, kStripe - held_);  // which the length tells from zeros that were given
    last.stripes(last.rest_, 1);
    uint64_t hash = total_ * p1;
    for (const uint64_t lane : last.lanes_) hash = (hash ^ (std::rotl(lane * p2, 31) * p1)) * p1 + p4;
    return mixed(hash);
}

}  // namespace headrace
