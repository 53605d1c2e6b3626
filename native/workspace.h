// What a sampler works in, kept from batch to batch.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "vector.h"

namespace headrace {

// One thread's stretch of frontier rows: positions are drawn for group g while the neighbors of group g - 1 and the
// table entries of group g - 2 are on their way from memory.
template <class Key>
struct Stretch {
    struct Group {
        std::vector<int64_t> positions;
        std::vector<Key> keys;
        int64_t count = 0, edge = 0;
    };
    Group ring[3];
    std::vector<int64_t> scratch;
    DrawRow rows[kDrawGroup];
};

// Of one caller at a time.
template <class Table>
struct SampleWorkspace {
    using Key = typename Table::Key;
    Table table;
    Array<int64_t> begin;  // of the frontier's rows
    Array<uint32_t> degree;
    std::vector<Stretch<Key>> stretches;
    std::vector<Key> raw;         // many threads: neighbors before relabeling
    std::vector<uint8_t> is_new;  // and whether each is the first of its node

    int64_t bytes() const {
        return table.bytes() + begin.size() * 12 + static_cast<int64_t>(raw.capacity() * sizeof(Key) + is_new.capacity());
    }
    void reserve_rows(int64_t rows) {
        if (begin.size() >= rows) return;
        begin.reset();  // freed before it is made larger
        degree.reset();
        degree = Array<uint32_t>(rows + rows / 16);
        begin = Array<int64_t>(rows + rows / 16);  // last, for its size says what there is
    }
};

}  // namespace headrace
