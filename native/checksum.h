// A 64-bit checksum of bytes that come in pieces, in the manner of XXH3's long form (Yann Collet's xxHash): eight lanes of
// 32-bit products, mixed after every KiB. It is about as fast as memory is read, and the same number on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

class Checksum {
public:
    Checksum();
    void update(const unsigned char* data, size_t size);
    uint64_t digest() const;

private:
    static constexpr size_t kLanes = 8, kStripe = 8 * kLanes, kBlock = 16;  // words, bytes, stripes

    void stripes(const unsigned char* data, size_t count);

    alignas(16) uint64_t lanes_[kLanes];
    uint64_t total_ = 0;
    size_t at_ = 0;  // stripes of the block so far
    unsigned char rest_[kStripe] = {};  // what is too short for a stripe yet
    size_t held_ = 0;
};

}  // namespace headrace
