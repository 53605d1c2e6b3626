// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): a counter-based
// generator, so that a draw is a pure function of what it is for and never of who draws it, or when.
#pragma once

#include <cstdint>

namespace headrace {

struct PhiloxKey {
    uint32_t k0, k1;
};

struct PhiloxBlock {
    uint32_t word[4];
};

// Static: the file is compiled for several instruction sets, and each keeps its own copy.
static inline PhiloxBlock philox(PhiloxKey key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = key.k0, k1 = key.k1;
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * c0;
        const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(b);
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// What a stream of random numbers is for. Streams of one seed never share a counter. Python and Triton have these numbers from
// here, as `_native.Purpose`; they are part of what a seed means and never change.
enum class Purpose : uint32_t {
    sample = 1,      // neighbors of a batch
    shuffle = 2,     // the order of seeds or edges in an epoch
    generate = 3,    // degrees, edges and features of a generated graph
    dropout = 4,     // elements that are dropped
    attend = 5,      // attention coefficients that are dropped
    labor = 6,       // neighbors by LABOR
    negative = 7,    // negative edges
    rounding = 8,    // stochastic rounding
    initial = 9,     // initial rows of an embedding
    residence = 10,  // partitions that are in memory in an epoch
    node_order = 11, // the order of nodes that partitions on disk are cut from
    step = 12,       // what a training step draws from torch's generator
    community = 16,  // classes, ids and splits of a generated graph of communities
    knowledge = 17,  // triples of a generated knowledge graph
    events = 18,     // events of a generated stream
};

// The key of one batch: all its draws are philox(key, slot block, node low, node high, hop).
static inline PhiloxKey stream_key(uint64_t seed, uint32_t epoch, uint64_t batch, Purpose purpose) {
    const PhiloxKey root{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    const PhiloxBlock b = philox(root, epoch, static_cast<uint32_t>(batch), static_cast<uint32_t>(batch >> 32),
                                 static_cast<uint32_t>(purpose));
    return {b.word[0], b.word[1]};
}

// An integer below `bound` (at most 2^32) from one word; its bias is under bound / 2^32.
static inline uint32_t below(uint32_t word, uint64_t bound) {
    return static_cast<uint32_t>((word * bound) >> 32);
}

// The same from two words, for bounds where the bias of one would show.
static inline uint64_t below_wide(uint32_t high, uint32_t low, uint64_t bound) {
    const uint64_t word = uint64_t{high} << 32 | low;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
}

// Rows longer than this draw with two words a slot.
static constexpr int64_t kNarrowDegree = 1 << 16;

}  // namespace headrace
