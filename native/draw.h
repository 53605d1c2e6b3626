// One hop's draws: which of a row's entries count, and how some of them are chosen.
#pragma once

#include <algorithm>
#include <cstdint>

#include "philox.h"
#include "sample.h"
#include "vector.h"
#include "weigh.h"

namespace headrace {

// Whether [first, last) can be the entries of a row in a graph of `edges` edges.
inline bool is_row(int64_t first, int64_t last, int64_t edges) {
    return first >= 0 && last >= first && last <= edges && last - first <= UINT32_MAX;
}

// How many of its `degree` entries a row takes.
inline int64_t take_of(int64_t degree, int64_t fanout, bool replace) {
    return fanout < 0 ? degree : replace ? (degree ? fanout : 0) : std::min(degree, fanout);
}

// How many of the entries [first, last) of a row lie before `times[at]`: they are a prefix, for times do not decrease.
template <class Id>
int64_t past(const SampleGraph<Id>& graph, const void* times, int64_t at, int64_t first, int64_t last, bool inclusive) {
    const auto count = [&](const auto* time) {
        const auto until = static_cast<decltype(time)>(times)[at];
        const auto* end = inclusive ? std::upper_bound(time + first, time + last, until)
                                    : std::lower_bound(time + first, time + last, until);
        return end - (time + first);
    };
    return graph.real_time ? count(static_cast<const double*>(graph.time)) : count(static_cast<const int64_t*>(graph.time));
}

// Where the random numbers of a hop come from.
struct HopDraw {
    PhiloxKey key;
    uint32_t hop;              // last word of the counter, but for the tree
    bool replace;              // not where all are taken
    bool ranked;               // by weight without replacement, or LABOR
    const double* cumulative;  // by weight with replacement
    Ranking ranking;
};

template <class Id>
HopDraw hop_draw(const SampleGraph<Id>& graph, const SampleOptions& options, const SampleRequest& request, uint32_t hop) {
    HopDraw how{};
    how.key = stream_key(request.seed, request.epoch, request.batch, Purpose::sample);
    how.hop = hop;
    how.replace = options.replace && options.fanouts[hop] >= 0;
    how.ranked = options.labor || (graph.weight && !how.replace);
    how.cumulative = how.replace ? graph.cumulative : nullptr;
    how.ranking.weight = graph.weight;
    if (options.labor) {
        how.key = stream_key(request.seed, request.epoch, 0, Purpose::labor);
        how.hop = options.layer_dependency ? 0 : hop;
        how.ranking.labor = true;
        how.ranking.indices = Ids{graph.indices, sizeof(Id) == 8};
        how.ranking.batch = static_cast<uint32_t>(request.batch);
        how.ranking.dependency = options.batch_dependency;
    }
    return how;
}

// Positions of what each row takes, one row after the other. `trees`, of the rows, stand tree by tree; null where there are none.
inline void draw_rows(const HopDraw& how, const int32_t* trees, const DrawRow* rows, int64_t count, int64_t* scratch,
                      int64_t* positions) {
    const VectorTable& vector = vector_table();
    const bool alone = how.ranked || how.cumulative;  // row by row
    if (!trees && !alone) return vector.draw(how.key, how.hop, how.replace, rows, count, scratch, positions);
    for (int64_t i = 0; i < count;) {
        const uint32_t hop = trees ? how.hop | (static_cast<uint32_t>(trees[i]) + 1) << 8 : how.hop;
        if (!alone) {
            int64_t end = i, take = 0;
            for (; end < count && trees[end] == trees[i]; ++end) take += rows[end].take;
            vector.draw(how.key, hop, how.replace, rows + i, end - i, scratch, positions);
            positions += take;
            i = end;
            continue;
        }
        if (how.ranked)
            vector.rank(how.key, hop, how.ranking, rows[i], scratch, positions);
        else
            draw_by_weight(how.key, hop, how.cumulative, rows[i], positions);
        positions += rows[i++].take;
    }
}

}  // namespace headrace
