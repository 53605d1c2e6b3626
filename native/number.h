// Numbers for ids, in order of first appearance.
#pragma once

#include <cstdint>

#include "common.h"
#include "memory.h"

namespace headrace {

// Ids without repeats go to `unique`, and where in it each id is to `place`; returns how many there are.
template <class Id>
int64_t number_ids(const Id* ids, int64_t count, int64_t* unique, int64_t* place) {
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    Array<int64_t> cells(int64_t{1} << bits);  // which number is there, and -1 in an empty one
    std::fill_n(cells.data(), cells.size(), int64_t{-1});
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t id = static_cast<int64_t>(ids[i]);
        uint64_t slot = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> (64 - bits);
        while (cells[static_cast<int64_t>(slot)] >= 0 && unique[cells[static_cast<int64_t>(slot)]] != id) slot = (slot + 1) & mask;
        int64_t& number = cells[static_cast<int64_t>(slot)];
        if (number < 0) {
            unique[next] = id;
            number = next++;
        }
        place[i] = number;
    }
    return next;
}

}  // namespace headrace
