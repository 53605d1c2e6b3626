#include "attend.h"

#include <cstring>

#include "common.h"
#include "memory.h"

namespace headrace {
namespace {

// Rows are cut into parts of about equal work. How many depends on the work alone: the gradient of the pairs' attention is summed
// part by part, and must not depend on the number of threads.
class Parts {
public:
    explicit Parts(const Attention& in) : in_(in), work_(in.count + in.rows) {
        parts_ = std::clamp<int64_t>(work_ * in.heads * in.channels >> 18, 1, std::clamp<int64_t>(in.rows, 1, 512));
    }
    int64_t count() const { return parts_; }
    int64_t begin(int64_t i) const {
        if (i == 0 || i == parts_) return i ? in_.rows : 0;
        const int64_t target = cut(work_, parts_, i);
        int64_t low = 0, high = in_.rows;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            in_.indptr[middle] < target - middle ? low = middle + 1 : high = middle;
        }
        return low;
    }

private:
    const Attention& in_;
    const int64_t work_;
    int64_t parts_;
};

// Calls task(part, begin, end, scratch) for every part; a false one stops the others.
template <class Task>
void for_parts(const Attention& in, int threads, Task task) {
    if (in.rows == 0) return;
    const Parts parts(in);
    const int64_t bytes = vector_table().attend_scratch(in);
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

template <class S>
void add_parts(const double* parts, int64_t count, int64_t width, S* out) {
    for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += parts[i * width + c];
        out[c] = static_cast<S>(sum);
    }
}

}  // namespace

void attend(const Attention& in, int threads) {
    const VectorTable& vector = vector_table();
    for_parts(in, threads, [&](int64_t, int64_t begin, int64_t end, char* scratch) {
        return vector.attend(in, begin, end, scratch);
    });
}

void attend_gradient(const Attention& graph, const Attention& reverse, void* attention, int threads) {
    const VectorTable& vector = vector_table();
    const bool columns = reverse.grad_x || reverse.grad_source;
    const int64_t number = graph.element == Element::f64 ? 8 : 4, width = graph.heads * graph.channels;
    Attention rows = graph, transposed = reverse;
    Array<char> facts(columns ? graph.rows * 4 * padded_heads(graph.heads, 64 / number) * number : 0);
    if (columns) rows.facts = transposed.facts = facts.data();

    const int64_t parts = attention ? Parts(rows).count() : 0;
    Array<double> sums(product_of(parts, width));
    std::fill_n(sums.data(), sums.size(), 0.0);
    for_parts(rows, threads, [&](int64_t part, int64_t begin, int64_t end, char* scratch) {
        return vector.attend_row_gradient(rows, begin, end, scratch, attention ? sums.data() + part * width : nullptr);
    });
    if (attention && graph.element == Element::f64)
        add_parts(sums.data(), parts, width, static_cast<double*>(attention));
    else if (attention)
        add_parts(sums.data(), parts, width, static_cast<float*>(attention));
    if (!columns) return;
    for_parts(transposed, threads, [&](int64_t, int64_t begin, int64_t end, char* scratch) {
        return vector.attend_column_gradient(transposed, begin, end, scratch);
    });
}

}  // namespace headrace
