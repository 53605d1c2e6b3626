// Weights of edges, as the weighted draws read them.
#pragma once

#include <cstdint>

#include "philox.h"
#include "vector.h"

namespace headrace {

// out[e] = the sum of the weights of e's row up to e and with it, added in order.
void cumulative_weights(const int64_t* indptr, int64_t rows, const float* weight, int64_t edges, double* out, int threads);

// Positions of `take` entries of a row drawn by weight with replacement: each slot finds u * (the row's sum) among the sums.
inline void draw_by_weight(PhiloxKey key, uint32_t hop, const double* cumulative, const DrawRow& row, int64_t* positions) {
    const double* sums = cumulative + row.begin;
    const double total = row.degree ? sums[row.degree - 1] : 0.0;
    PhiloxBlock block{};
    for (int64_t slot = 0; slot < row.take; ++slot) {
        if (slot % 2 == 0)
            block = philox(key, static_cast<uint32_t>(slot / 2), static_cast<uint32_t>(row.node),
                           static_cast<uint32_t>(row.node >> 32), hop);
        const uint64_t high = block.word[2 * (slot % 2)], low = block.word[2 * (slot % 2) + 1];
        const double wanted = static_cast<double>(high << 21 | low >> 11) * 0x1p-53 * total;
        int64_t first = 0, last = row.degree - 1;  // of the entries, the first whose sum is above; the last, if rounding leaves none
        while (first < last) {
            const int64_t middle = first + (last - first) / 2;
            if (sums[middle] > wanted)
                last = middle;
            else
                first = middle + 1;
        }
        positions[slot] = row.begin + first;
    }
}

}  // namespace headrace
