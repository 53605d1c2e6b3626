#include "negative.h"

#include <limits>

#include "common.h"
#include "philox.h"

namespace headrace {
namespace {

// A node by weight: the first whose running sum is above u * total, so one of weight 0 is never drawn.
int64_t by_weight(uint32_t high, uint32_t low, const double* cumulative, int64_t count) {
    const uint64_t word = uint64_t{high} << 32 | low;
    const double u = static_cast<double>(word >> 11) * 0x1p-53 * cumulative[count - 1];
    return std::upper_bound(cumulative, cumulative + count - 1, u) - cumulative;
}

template <class Id>
bool contains(const Id* sources, int64_t begin, int64_t end, int64_t node) {
    if (node > std::numeric_limits<Id>::max()) return false;
    return std::find(sources + begin, sources + end, static_cast<Id>(node)) != sources + end;
}

}  // namespace

int64_t drawn_end(uint32_t high, uint32_t low, const double* cumulative, int64_t count) {
    return cumulative ? by_weight(high, low, cumulative, count)
                      : static_cast<int64_t>(below_wide(high, low, static_cast<uint64_t>(count)));
}

int64_t draw_negatives(const NegativeRequest& request, int64_t* src, int64_t* dst) {
    const PhiloxKey key = stream_key(request.seed, request.epoch, request.batch, Purpose::negative);
    FirstError error;
    int64_t left = 0;
    const int threads = useful_threads(request.threads, request.count, request.indptr ? 256 : 4096);
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : left) if (threads > 1)
    for (int64_t slot = 0; slot < request.count; ++slot) {
        for (int64_t round = 0; round < request.rounds; ++round) {
            const PhiloxBlock b = philox(key, static_cast<uint32_t>(slot), static_cast<uint32_t>(slot >> 32),
                                         static_cast<uint32_t>(round), 0);
            const int64_t u = request.src ? request.src[slot]
                                          : drawn_end(b.word[0], b.word[1], request.src_cumulative, request.num_src);
            const int64_t v = drawn_end(b.word[2], b.word[3], request.dst_cumulative, request.num_dst);
            if (!request.src) src[slot] = u;
            dst[slot] = v;
            if (!request.indptr || v >= request.rows) break;
            const int64_t begin = request.indptr[v], end = request.indptr[v + 1];
            if (begin < 0 || end < begin || end > request.edges) {
                error.set("the graph's indptr is corrupt");
                break;
            }
            const void* sources = request.indices.data;
            const bool edge = request.indices.wide ? contains(static_cast<const int64_t*>(sources), begin, end, u)
                                                   : contains(static_cast<const int32_t*>(sources), begin, end, u);
            if (!edge) break;
            left += round + 1 == request.rounds;
        }
    }
    error.rethrow();
    return left;
}

}  // namespace headrace
