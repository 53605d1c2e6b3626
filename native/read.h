// Rows of a file by id, read by several threads at a time.
#pragma once

#include <cstdint>

namespace headrace {

struct FileRows {
    int fd;
    int64_t offset;     // where row 0 begins
    int64_t num_rows;
    int64_t row_bytes;
};

// Row ids[i] goes to row positions[i] of out (row i without positions). Rows are read in the order they have in the file, those
// that touch in one call. Throws std::invalid_argument that names the row where the file ends early or cannot be read.
template <class Id>
void read_rows(const FileRows& file, const Id* ids, int64_t count, const int64_t* positions, int64_t out_rows, char* out,
               int threads);

}  // namespace headrace
