#include "draw_part.h"

#include <vector>

#include "common.h"
#include "draw.h"
#include "memory.h"
#include "table.h"

namespace headrace {
namespace {

constexpr int64_t kAhead = 32;  // rows requested from memory before they are needed

// Positions of neighbors that are on their way from memory, and where they go.
template <class Id>
struct Fetched {
    std::vector<int64_t> positions;
    int64_t count = 0;
    Id* to = nullptr;

    // False if one of them is no node.
    bool read(const GraphPart<Id>& part) {
        bool inside = true;
        for (int64_t q = 0; q < count; ++q) {
            to[q] = part.indices[positions[q]];
            inside &= to[q] >= 0 && static_cast<int64_t>(to[q]) < part.num_nodes;
        }
        count = 0;
        return inside;
    }
};

}  // namespace

template <class Id>
Buffer draw_part(const GraphPart<Id>& part, const PartRequest& request, const std::shared_ptr<Pool>& pool, int64_t* lengths) {
    require(request.fanout >= -1 && request.fanout < kMost, "a fanout must be -1 (all) or at least 0");
    const bool replace = request.replace && request.fanout >= 0;
    const int64_t count = request.count;
    FirstError error;
    Buffer row_buffer(pool, bytes_of(count, sizeof(DrawRow))), edge_buffer(pool, bytes_of(count + 1, sizeof(int64_t)));
    DrawRow* rows = row_buffer.as<DrawRow>();
    int64_t* edges = edge_buffer.as<int64_t>();  // before each row, over all groups
    edges[0] = 0;
    const int workers = useful_threads(request.threads, count, 1024);
#pragma omp parallel for schedule(static) num_threads(workers) if (workers > 1)
    for (int64_t i = 0; i < count; ++i) {
        if (const int64_t coming = i + kAhead < count ? request.rows[i + kAhead] : -1; coming >= 0 && coming < part.rows) {
            prefetch(part.indptr + coming);
            prefetch(part.nodes + coming);
        }
        const int64_t row = request.rows[i];
        if (row < 0 || row >= part.rows) {
            error.set("a row is out of range of this part of the graph");
            continue;
        }
        const int64_t first = part.indptr[row], last = part.indptr[row + 1];
        if (!is_row(first, last, part.edges)) {
            error.set("the graph's indptr is corrupt");
            continue;
        }
        const int64_t take = take_of(last - first, request.fanout, request.replace);
        if (take >= kMost) error.set("the sample is too large: use smaller fanouts or fewer seeds");
        rows[i] = {static_cast<uint64_t>(part.nodes[row]), first, last - first, take};
        edges[i + 1] = take;
    }
    error.rethrow();
    for (int64_t i = 0; i < count; ++i) edges[i + 1] += edges[i];

    Buffer drawn_rows(pool, bytes_of(count + edges[count], sizeof(Id)));
    Id* out = drawn_rows.as<Id>();
    std::vector<int64_t> starts(static_cast<size_t>(request.groups) + 1, 0);  // rows before each group
    for (int64_t g = 0; g < request.groups; ++g) {
        const int64_t begin = starts[g], end = starts[g + 1] = begin + request.sizes[g];
        for (int64_t i = begin; i < end; ++i) out[i + edges[begin]] = static_cast<Id>(rows[i].take);
        lengths[g] = end - begin + edges[end] - edges[begin];
    }

    // Draws for rows [from, to) of group g, while the neighbors of the rows before them are on their way.
    const auto draw = [&](int64_t g, int64_t from, int64_t to, Fetched<Id>* ring, std::vector<int64_t>& scratch) {
        HopDraw how{};
        how.key = {static_cast<uint32_t>(request.keys[g]), static_cast<uint32_t>(request.keys[g] >> 32)};
        how.hop = request.hop;
        how.replace = replace;
        int turn = 0;
        bool inside = true;
        for (int64_t i = from; i < to; turn ^= 1) {
            Fetched<Id>& drawn = ring[turn];
            const int64_t begin = i;
            int64_t most = 0;
            for (; i < to && i - begin < kDrawGroup && (i == begin || edges[i] - edges[begin] < 512); ++i)
                if (replace || rows[i].take < rows[i].degree) most = std::max(most, rows[i].take);
            const int64_t take = edges[i] - edges[begin];
            if (static_cast<int64_t>(scratch.size()) < draw_scratch(most)) scratch.resize(static_cast<size_t>(draw_scratch(most)));
            if (static_cast<int64_t>(drawn.positions.size()) < take) drawn.positions.resize(static_cast<size_t>(take));
            draw_rows(how, nullptr, rows + begin, i - begin, scratch.data(), drawn.positions.data());
            for (int64_t q = 0; q < take; ++q) prefetch(part.indices + drawn.positions[q]);
            drawn.to = out + starts[g + 1] + edges[begin];
            drawn.count = take;
            inside &= ring[turn ^ 1].read(part);
        }
        inside &= ring[turn ^ 1].read(part);
        if (!inside) error.set("the graph holds an index out of range");
    };

    const int parts = useful_threads(request.threads, edges[count], 4096);
#pragma omp parallel for schedule(static, 1) num_threads(parts) if (parts > 1)
    for (int p = 0; p < parts; ++p)
        error.guard([&] {
            const auto row_at = [&](int64_t i) -> int64_t {
                return std::lower_bound(edges, edges + count, cut(edges[count], parts, i)) - edges;
            };
            const int64_t from = p ? row_at(p) : 0, to = p + 1 < parts ? row_at(p + 1) : count;
            Fetched<Id> ring[2];
            std::vector<int64_t> scratch;
            for (int64_t g = 0; g < request.groups; ++g) {
                const int64_t begin = std::max(from, starts[g]), end = std::min(to, starts[g + 1]);
                if (begin < end) draw(g, begin, end, ring, scratch);
            }
        });
    error.rethrow();
    return drawn_rows;
}

template Buffer draw_part(const GraphPart<int32_t>&, const PartRequest&, const std::shared_ptr<Pool>&, int64_t*);
template Buffer draw_part(const GraphPart<int64_t>&, const PartRequest&, const std::shared_ptr<Pool>&, int64_t*);

}  // namespace headrace
