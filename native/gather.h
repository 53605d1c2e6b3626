// Rows by id into a given buffer: any width, any element type.
#pragma once

#include <cstdint>

namespace headrace {

template <class Id>
void gather_rows(const char* rows, int64_t num_rows, int64_t row_bytes, const Id* ids, int64_t count,
                 char* out, int threads);

}  // namespace headrace
