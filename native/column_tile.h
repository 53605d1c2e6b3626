// How many columns of its rows an aggregation sums at a time, so that more of the rows it reads again lie in the last-level cache.
#pragma once

#include <cstdint>

namespace headrace {

int64_t last_level_cache();  // bytes, as the system says, or a usual size where it does not

// `width` for all of them at once. `rows`: those that may be read, of `width` elements; `mean_degree`: reads of each.
int64_t column_tile(int64_t rows, int64_t width, int64_t element_bytes, int64_t cache_bytes, double mean_degree);

}  // namespace headrace
