// Rows from two places into one array, and back.
#pragma once

#include <cstdint>

namespace headrace {

// out[i] = cached[source[i]] where source[i] >= 0, fetched[-1 - source[i]] elsewhere.
void merge_rows(const char* cached, int64_t cached_rows, const char* fetched, int64_t fetched_rows, int64_t row_bytes,
                const int32_t* source, int64_t count, char* out, int threads);

// cached[slot[i]] = fetched[i] where slot[i] >= 0. Slots must differ.
void keep_rows(const char* fetched, int64_t row_bytes, const int32_t* slot, int64_t count, char* cached, int64_t cached_rows,
               int threads);

}  // namespace headrace
