// Local ids for the neighbors that many threads have drawn, in order of first appearance.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "table.h"

namespace headrace {

// Local ids of `raw` go to `indices`, nodes that are new behind the `count` that are in `nodes`; returns how many are new. The least
// position claims a node, then ids follow from a prefix sum over the claims.
template <class Id>
int64_t relabel(StampTable<Id>& table, const Id* raw, int64_t added, int parts, int64_t count, std::vector<uint8_t>& is_new,
                Id* nodes, int32_t* indices) {
    is_new.resize(static_cast<size_t>(added));
    std::vector<int64_t> fresh(static_cast<size_t>(parts) + 1, 0);
#pragma omp parallel num_threads(parts)
    {
#pragma omp for schedule(static, 1)
        for (int p = 0; p < parts; ++p)
            for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e) {
                if (e + 32 < stop) table.prefetch(raw[e + 32]);
                table.claim(raw[e], static_cast<int32_t>(e));
            }
#pragma omp for schedule(static, 1)
        for (int p = 0; p < parts; ++p)
            for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e) {
                if (e + 32 < stop) table.prefetch(raw[e + 32]);
                is_new[e] = table.claimed(raw[e], static_cast<int32_t>(e));
                fresh[p + 1] += is_new[e];
            }
#pragma omp single
        for (int p = 0; p < parts; ++p) fresh[p + 1] += fresh[p];
#pragma omp for schedule(static, 1)
        for (int p = 0; p < parts; ++p) {
            int64_t local = count + fresh[p];
            for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e)
                if (is_new[e]) {
                    nodes[local] = raw[e];
                    table.set(raw[e], static_cast<int32_t>(local++));
                }
        }
#pragma omp for schedule(static, 1)
        for (int p = 0; p < parts; ++p)
            for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e) {
                if (e + 32 < stop) table.prefetch(raw[e + 32]);
                indices[e] = table.get(raw[e]);
            }
    }
    return fresh[static_cast<size_t>(parts)];
}

}  // namespace headrace
