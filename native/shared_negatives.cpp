#include "shared_negatives.h"

#include "common.h"
#include "memory.h"
#include "negative.h"
#include "philox.h"

namespace headrace {
namespace {

int64_t number(const int64_t* nodes, int64_t count, int64_t* ids, int64_t* place) {
    require(count < int64_t{1} << 31, "too many nodes for a batch");
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    Array<int32_t> cells(int64_t{1} << bits);  // which number is there, and -1 in an empty one
    std::fill_n(cells.data(), cells.size(), -1);
    int32_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint64_t slot = static_cast<uint64_t>(nodes[i]) * 0x9E3779B97F4A7C15ull >> (64 - bits);
        int32_t number = cells[static_cast<int64_t>(slot)];
        while (number >= 0 && ids[number] != nodes[i]) {
            slot = (slot + 1) & mask;
            number = cells[static_cast<int64_t>(slot)];
        }
        if (number < 0) {
            ids[next] = nodes[i];
            number = cells[static_cast<int64_t>(slot)] = next++;
        }
        place[i] = number;
    }
    return next;
}

}  // namespace

void draw_shared(const SharedDraws& in, int64_t* out) {
    const PhiloxKey key = stream_key(in.seed, in.epoch, in.batch, Purpose::negative);
    const int64_t total = in.before[in.ranges];
    const int threads = useful_threads(in.threads, in.count(), 4096);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t slot = 0; slot < in.count(); ++slot) {
        const PhiloxBlock b = philox(key, static_cast<uint32_t>(slot), static_cast<uint32_t>(slot >> 32), 0, 0);
        if (slot % in.amount < in.own) {
            out[slot] = drawn_end(b.word[0], b.word[1], nullptr, in.ends);
            continue;
        }
        const int64_t among = drawn_end(b.word[2], b.word[3], in.cumulative, total);
        const int64_t range = std::upper_bound(in.before, in.before + in.ranges, among) - in.before - 1;
        out[slot] = among - in.before[range] + in.starts[range];
    }
}

int64_t number_edges(const EdgeNumbers& in, const SharedDraws& draws) {
    for (int64_t i = 0; i < in.edges; ++i) {
        const int64_t at = in.positions[i];
        require(at >= 0 && at < in.triple_count, "position of an edge out of range");
        in.nodes[i] = in.triples[3 * at];
        in.relation[i] = in.triples[3 * at + 1];
        in.nodes[in.edges + i] = in.triples[3 * at + 2];
    }
    int64_t* drawn = in.nodes + 2 * in.edges;
    draw_shared(draws, drawn);
    for (int64_t chunk = 0; chunk < draws.chunks; ++chunk)
        for (int64_t i = chunk * draws.amount; i < chunk * draws.amount + draws.own; ++i) drawn[i] = in.nodes[drawn[i]];
    return number(in.nodes, 2 * in.edges + draws.count(), in.ids, in.place);
}

}  // namespace headrace
