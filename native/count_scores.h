// How many scores are above and level with each row's own: ranks are made of that.
#pragma once

#include <cstdint>

namespace headrace {

// Adds to above[r] how many of the row's scores are higher than high[r], and to level[r] how many of the others are at least low[r].
// A score that is NaN is above, and where the bounds are NaN all scores are: what cannot be compared gets the worst rank.
void count_scores(const float* scores, int64_t rows, int64_t width, const float* low, const float* high, int64_t* above,
                  int64_t* level, int threads);

}  // namespace headrace
