#include "count_scores.h"

#include "common.h"

namespace headrace {
namespace {

constexpr int64_t kBlock = 1 << 14;  // scores counted in 32 bits, in which a register holds most counts

}  // namespace

void count_scores(const float* scores, int64_t rows, int64_t width, const float* low, const float* high, int64_t* above,
                  int64_t* level, int threads) {
    const int team = useful_threads(threads, rows * width, 1 << 16);
#pragma omp parallel for schedule(static) num_threads(team) if (team > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const float bottom = low[r], top = high[r];
        int64_t higher = 0, reached = 0;
        for (int64_t begin = 0; begin < width; begin += kBlock) {
            const float* row = scores + r * width;
            const int64_t end = std::min(begin + kBlock, width);
            int32_t over = 0, at_least = 0;
            for (int64_t i = begin; i < end; ++i) {
                over += !(row[i] <= top);  // so that a score or a bound that is NaN counts against the row
                at_least += !(row[i] < bottom);
            }
            higher += over;
            reached += at_least;
        }
        above[r] += higher;
        level[r] += reached - higher;
    }
}

}  // namespace headrace
