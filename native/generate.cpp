#include "generate.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "common.h"
#include "philox.h"

namespace headrace {
namespace {

enum Draw : uint32_t { kWeight, kCount, kPartner, kNoise };  // last counter of each kind of draw

double uniform(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// The node at which the running weight passes `target`: a table of `nodes` evenly spaced starting points leaves a
// step or two on average.
class WeightedPick {
public:
    explicit WeightedPick(const Communities& c) : c_(c), guide_(c.nodes + 1) {
        const double total = c.cumulative[c.nodes];
        per_weight_ = static_cast<double>(c.nodes) / total;
        int64_t node = 0;
        for (int64_t g = 0; g <= c.nodes; ++g) {
            while (node + 1 < c.nodes && c.cumulative[node + 1] * per_weight_ <= static_cast<double>(g)) ++node;
            guide_[g] = node;
        }
    }
    // A node of [begin, end), and of the others.
    int64_t within(double u, int64_t begin, int64_t end) const {
        return at(c_.cumulative[begin] + u * (c_.cumulative[end] - c_.cumulative[begin]), begin, end);
    }
    int64_t outside(double u, int64_t begin, int64_t end) const {
        const double hole = c_.cumulative[end] - c_.cumulative[begin];
        const double target = u * (c_.cumulative[c_.nodes] - hole);
        return target < c_.cumulative[begin] ? at(target, 0, begin) : at(target + hole, end, c_.nodes);
    }

private:
    int64_t at(double target, int64_t begin, int64_t end) const {
        const int64_t g = std::clamp<int64_t>(static_cast<int64_t>(target * per_weight_), 0, c_.nodes);
        int64_t node = std::clamp(guide_[g], begin, end - 1);
        while (node + 1 < end && c_.cumulative[node + 1] <= target) ++node;
        while (node > begin && c_.cumulative[node] > target) --node;
        return node;
    }

    const Communities& c_;
    Array<int64_t> guide_;
    double per_weight_;
};

}  // namespace

void power_law_weights(uint64_t seed, double exponent, double most, int64_t nodes, double* out, int threads) {
    threads = useful_threads(threads, nodes, 1 << 12);
    require(exponent > 2.0, "exponent must be above 2, or the mean degree is not finite");
    const PhiloxKey key = stream_key(seed, 0, 0, Purpose::generate);
    // Lomax: a Pareto law moved to begin at 0, so that most nodes have few edges, as in real graphs; and a little more, so
    // that few have none.
    const double power = -1.0 / (exponent - 1.0), mean = 1.0 / (exponent - 2.0), least = 0.05 * mean;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < nodes; ++i) {
        const PhiloxBlock b = philox(key, 0, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), kWeight);
        out[i] = std::min(std::pow(uniform(b.word[0]), power) - 1.0 + least, most * mean);
    }
}

template <class Id>
Pairs<Id> candidate_edges(const Communities& c, uint64_t seed, uint32_t round, double wanted, bool undirected,
                          int threads) {
    threads = useful_threads(threads, c.nodes, 1 << 10);
    const PhiloxKey key = stream_key(seed, round, 1, Purpose::generate);
    const double per_weight = wanted / c.cumulative[c.nodes];
    Array<int64_t> start(c.nodes + 1);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < c.nodes; ++i) {
        const PhiloxBlock b = philox(key, 0, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), kCount);
        const double expected = (c.cumulative[i + 1] - c.cumulative[i]) * per_weight;
        start[i] = static_cast<int64_t>(expected + uniform(b.word[0]));
    }
    start[c.nodes] = 0;
    std::exclusive_scan(start.data(), start.data() + c.nodes + 1, start.data(), int64_t{0});

    const WeightedPick pick(c);
    const double degree_per_weight = c.mean_degree * static_cast<double>(c.nodes) / c.cumulative[c.nodes];
    Pairs<Id> pairs{Array<Id>(start[c.nodes]), Array<Id>(start[c.nodes])};
#pragma omp parallel for schedule(dynamic, 4096) num_threads(threads)
    for (int64_t i = 0; i < c.nodes; ++i) {
        const int64_t class_begin = c.class_ends[c.class_of[i]], class_end = c.class_ends[c.class_of[i] + 1];
        const int64_t block_begin = class_begin + (i - class_begin) / c.block * c.block;
        const int64_t block_end = std::min(block_begin + c.block, class_end);
        // A hub cannot place its share among the few nodes of its block: what does not fit goes to the class.
        const double degree = (c.cumulative[i + 1] - c.cumulative[i]) * degree_per_weight;
        const double room = 0.5 * static_cast<double>(block_end - block_begin - 1);
        const double in_block = block_end - block_begin < 2 ? 0.0 : std::min(c.within_block, room / std::max(degree, 1e-9));
        const double in_class = class_end - class_begin < 2 ? in_block : c.within_block + c.within_class;
        for (int64_t e = start[i]; e < start[i + 1]; ++e) {
            int64_t partner = i;
            for (uint32_t attempt = 0; partner == i && attempt < 16; ++attempt) {
                const uint32_t counter = static_cast<uint32_t>(e - start[i]) * 16 + attempt;
                const PhiloxBlock b =
                    philox(key, counter, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), kPartner);
                const double kind = uniform(b.word[0]);
                const double u = (static_cast<double>(b.word[1]) + uniform(b.word[2])) * 0x1p-32;
                const bool alone = class_end - class_begin == c.nodes;  // there is no other class
                partner = kind < in_block                ? pick.within(u, block_begin, block_end)
                          : kind < in_class || alone ? pick.within(u, class_begin, class_end)
                                                     : pick.outside(u, class_begin, class_end);
            }
            if (partner == i) partner = (i + 1) % c.nodes;
            pairs.from[e] = static_cast<Id>(undirected ? std::min(i, partner) : i);
            pairs.to[e] = static_cast<Id>(undirected ? std::max(i, partner) : partner);
        }
    }
    return pairs;
}

template <class Id>
Pairs<Id> thin_edges(const int64_t* indptr, const Id* indices, int64_t rows, int64_t keep, const int64_t* id,
                     int threads) {
    const int64_t entries = indptr[rows];
    threads = useful_threads(threads, rows, 1 << 10);
    require(keep >= 0 && keep <= entries, "cannot keep more edges than there are");
    Pairs<Id> kept{Array<Id>(keep), Array<Id>(keep)};
#pragma omp parallel for schedule(dynamic, 4096) num_threads(threads)
    for (int64_t v = 0; v < rows; ++v)
        for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) {
            const int64_t at = cut(keep, entries, e);  // how many of the first e are kept
            if (cut(keep, entries, e + 1) == at) continue;
            kept.from[at] = static_cast<Id>(id[v]);
            kept.to[at] = static_cast<Id>(id[indices[e]]);
        }
    return kept;
}

void noisy_rows(uint64_t seed, const float* center, const int64_t* label, int64_t rows, int64_t width, float* out,
                int threads) {
    threads = useful_threads(threads, rows * width, 1 << 12);
    const PhiloxKey key = stream_key(seed, 0, 2, Purpose::generate);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < rows; ++i) {
        const float* mean = center + label[i] * width;
        for (int64_t j = 0; j < width; j += 4) {
            const PhiloxBlock b = philox(key, static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i),
                                         static_cast<uint32_t>(i >> 32), kNoise);
            float normal[4];
            for (int pair = 0; pair < 2; ++pair) {  // Box and Muller
                const float radius = std::sqrt(-2.0f * std::log(static_cast<float>(uniform(b.word[2 * pair]))));
                const float angle = 6.2831853f * (static_cast<float>(b.word[2 * pair + 1] >> 8) * 0x1p-24f);
                normal[2 * pair] = radius * std::cos(angle);
                normal[2 * pair + 1] = radius * std::sin(angle);
            }
            for (int64_t k = 0; k < 4 && j + k < width; ++k) out[i * width + j + k] = mean[j + k] + normal[k];
        }
    }
}

void random_words(uint64_t seed, uint32_t epoch, Purpose purpose, int64_t count, uint64_t* out, int threads) {
    const PhiloxKey key = stream_key(seed, epoch, 0, purpose);
    threads = useful_threads(threads, count, 1 << 14);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) {
        const PhiloxBlock b = philox(key, 0, static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0);
        out[i] = static_cast<uint64_t>(b.word[0]) << 32 | b.word[1];
    }
}

template Pairs<int32_t> candidate_edges(const Communities&, uint64_t, uint32_t, double, bool, int);
template Pairs<int64_t> candidate_edges(const Communities&, uint64_t, uint32_t, double, bool, int);
template Pairs<int32_t> thin_edges(const int64_t*, const int32_t*, int64_t, int64_t, const int64_t*, int);
template Pairs<int64_t> thin_edges(const int64_t*, const int64_t*, int64_t, int64_t, const int64_t*, int);

}  // namespace headrace
