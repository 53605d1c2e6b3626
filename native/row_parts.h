// The rows of a CSR cut into parts of about equal work, for threads to take. How many parts there are depends on the work alone:
// what is summed part by part then does not depend on the number of threads.
#pragma once

#include <cstring>

#include "common.h"
#include "memory.h"

namespace headrace {

class RowParts {
public:
    // `width`: numbers that an entry, or a row, costs.
    RowParts(const int64_t* indptr, int64_t rows, int64_t count, int64_t width) : indptr_(indptr), rows_(rows), work_(count + rows) {
        parts_ = std::clamp<int64_t>(work_ * width >> 18, 1, std::clamp<int64_t>(rows, 1, 512));
    }
    int64_t count() const { return parts_; }
    int64_t begin(int64_t i) const {
        if (i == 0 || i == parts_) return i ? rows_ : 0;
        const int64_t target = cut(work_, parts_, i);
        int64_t low = 0, high = rows_;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            indptr_[middle] < target - middle ? low = middle + 1 : high = middle;
        }
        return low;
    }

private:
    const int64_t* indptr_;
    const int64_t rows_, work_;
    int64_t parts_;
};

// Calls task(part, begin, end, scratch) for every part, with `bytes` of zeroed scratch per thread; a false one stops the others.
template <class Task>
void for_row_parts(const RowParts& parts, int64_t rows, int64_t bytes, int threads, Task task) {
    if (rows == 0) return;
    threads = useful_threads(threads, parts.count(), 1);
    FirstError error;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Array<char> scratch;
        error.guard([&] {
            scratch = Array<char>(bytes);
            std::memset(scratch.data(), 0, static_cast<size_t>(bytes));
        });
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < parts.count(); ++i) {
            const int64_t begin = parts.begin(i), end = parts.begin(i + 1);
            if (begin >= end || error.any()) continue;
            if (!task(i, begin, end, scratch.data())) error.set("indptr does not rise, or an index is out of range");
        }
    }
    error.rethrow();
}

// What the parts have summed, each `width` numbers, added up in their order.
template <class S>
void add_parts(const double* parts, int64_t count, int64_t width, S* out) {
    for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += parts[i * width + c];
        out[c] = static_cast<S>(sum);
    }
}

}  // namespace headrace
