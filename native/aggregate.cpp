#include "aggregate.h"

#include <cstring>
#include <vector>

#include "common.h"
#include "memory.h"

namespace headrace {
namespace {

constexpr int64_t kWindow = 2048;  // entries looked up at a time

int64_t element_bytes(Element e) { return e == Element::f64 ? 8 : e == Element::f32 ? 4 : 2; }
int64_t sum_bytes(Element e) { return e == Element::f64 ? 8 : 4; }

// Turns entries into addresses and coefficients, a window at a time, so that the vector loops see neither index
// types nor indirections.
class Window {
public:
    explicit Window(const Entries& entries)
        : entries_(entries), rows_(kWindow), coefficients_(kWindow), columns_(kWindow) {}

    // The tile for entries [from, to) of a row that begins at `row_begin`; `limit`: the task's last entry.
    RowTile tile(int64_t from, int64_t to, int64_t row_begin, int64_t limit) {
        if (from < begin_ || to > end_) fill(from, std::min(from + kWindow, limit));
        const bool weighted = entries_.weight || entries_.scale;
        const int64_t at = from - begin_;
        const char* c = reinterpret_cast<const char*>(coefficients_.data());
        return {rows_.data() + at,
                weighted ? c + at * sum_bytes(entries_.element) : nullptr,
                to - from,
                end_ - to,
                entries_.width,
                from - row_begin};
    }
    const int64_t* columns(int64_t from) const { return columns_.data() + (from - begin_); }

private:
    void fill(int64_t begin, int64_t end) {
        begin_ = begin;
        end_ = end;
        entries_.indices.wide ? look_up(static_cast<const int64_t*>(entries_.indices.data))
                              : look_up(static_cast<const int32_t*>(entries_.indices.data));
        if (entries_.weight || entries_.scale) {
            if (entries_.element == Element::f64)
                weigh(reinterpret_cast<double*>(coefficients_.data()));
            else
                weigh(reinterpret_cast<float*>(coefficients_.data()));
        }
    }
    template <class Id>
    void look_up(const Id* indices) {
        const int64_t n = end_ - begin_;
        for (int64_t i = 0; i < n; ++i) columns_[i] = static_cast<int64_t>(indices[begin_ + i]);
        if (entries_.ids) {
            for (int64_t i = 0; i < n; ++i) rows_[i] = entries_.x + entries_.ids[columns_[i]] * entries_.x_stride;
        } else {
            for (int64_t i = 0; i < n; ++i) rows_[i] = entries_.x + columns_[i] * entries_.x_stride;
        }
    }
    template <class S>
    void weigh(S* out) const {
        const S *weight = static_cast<const S*>(entries_.weight), *scale = static_cast<const S*>(entries_.scale);
        for (int64_t i = 0; i < end_ - begin_; ++i) {
            const int64_t e = begin_ + i;
            const S w = weight ? weight[entries_.position ? entries_.position[e] : e] : S{1};
            out[i] = scale ? w * scale[columns_[i]] : w;
        }
    }

    const Entries& entries_;
    int64_t begin_ = 0, end_ = 0;
    std::vector<const void*> rows_;
    std::vector<double> coefficients_;  // room for either type
    std::vector<int64_t> columns_;
};

// Calls row(v, window, limit) for every row, in tasks of about equal work, each with a window of its own.
template <class Row>
void for_rows(const Entries& entries, int threads, Row row) {
    const int64_t rows = entries.rows, count = entries.indptr[rows], work = count + rows;
    threads = useful_threads(threads, work * entries.width, 1 << 14);
    const int64_t tasks = threads == 1 ? 1 : std::min<int64_t>(rows, int64_t{threads} * 64);
    const auto row_at = [&](int64_t i) {  // entries and rows both count as work
        const int64_t target = cut(work, tasks, i);
        int64_t low = 0, high = rows;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            entries.indptr[middle] + middle < target ? low = middle + 1 : high = middle;
        }
        return low;
    };
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Window window(entries);
        std::vector<double> accumulator(static_cast<size_t>(entries.width) + 8);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task) {
            const int64_t begin = row_at(task), end = task + 1 < tasks ? row_at(task + 1) : rows;
            for (int64_t v = begin; v < end; ++v) row(v, window, entries.indptr[end], accumulator.data());
        }
    }
}

// Calls use(tile, from) for the pieces of row v that fit a window.
template <class Use>
inline void for_tiles(const Entries& entries, int64_t v, Window& window, int64_t limit, Use use) {
    const int64_t begin = entries.indptr[v], end = entries.indptr[v + 1];
    for (int64_t from = begin; from < end; from += kWindow)
        use(window.tile(from, std::min(from + kWindow, end), begin, limit), from);
}

}  // namespace

void aggregate(const Entries& entries, Reduce reduce, char* out, int32_t* where, int threads) {
    const VectorTable& vector = vector_table();
    const int64_t out_bytes = entries.width * element_bytes(entries.element);
    const int64_t accumulator_bytes = entries.width * sum_bytes(entries.element);
    for_rows(entries, threads, [&](int64_t v, Window& window, int64_t limit, void* accumulator) {
        const int64_t degree = entries.indptr[v + 1] - entries.indptr[v];
        std::memset(accumulator, 0, static_cast<size_t>(accumulator_bytes));
        if (reduce == Reduce::max) {
            int32_t* row_where = where + v * entries.width;
            if (degree == 0) std::fill_n(row_where, entries.width, -1);
            for_tiles(entries, v, window, limit, [&](const RowTile& tile, int64_t) {
                vector.max(entries.element, tile, accumulator, row_where);
            });
        } else {
            for_tiles(entries, v, window, limit, [&](const RowTile& tile, int64_t) {
                vector.sum(entries.element, tile, accumulator);
            });
        }
        const double scale = reduce == Reduce::mean && degree > 0 ? 1.0 / static_cast<double>(degree) : 1.0;
        vector.store(entries.element, accumulator, scale, entries.width, out + v * out_bytes);
    });
}

void max_gradient(const Entries& entries, const int64_t* forward, const int32_t* where, char* out, int threads) {
    const VectorTable& vector = vector_table();
    const int64_t out_bytes = entries.width * element_bytes(entries.element);
    for_rows(entries, threads, [&](int64_t u, Window& window, int64_t limit, void* accumulator) {
        thread_local std::vector<const int32_t*> taken(kWindow);
        thread_local std::vector<int32_t> slots(kWindow);
        std::memset(accumulator, 0, static_cast<size_t>(entries.width * sum_bytes(entries.element)));
        for_tiles(entries, u, window, limit, [&](const RowTile& tile, int64_t from) {
            const int64_t* columns = window.columns(from);
            for (int64_t i = 0; i < tile.count; ++i) {
                taken[i] = where + columns[i] * entries.width;
                slots[i] = static_cast<int32_t>(entries.position[from + i] - forward[columns[i]]);
            }
            vector.max_gradient(entries.element, tile, taken.data(), slots.data(), accumulator);
        });
        vector.store(entries.element, accumulator, 1.0, entries.width, out + u * out_bytes);
    });
}

void weight_gradient(const Entries& entries, const char* grad, const void* row_scale, const int32_t* where, void* out,
                     int threads) {
    const VectorTable& vector = vector_table();
    const int64_t grad_bytes = entries.width * element_bytes(entries.element);
    const int64_t size = sum_bytes(entries.element);
    for_rows(entries, threads, [&](int64_t v, Window& window, int64_t limit, void*) {
        const int32_t* row_where = where ? where + v * entries.width : nullptr;
        for_tiles(entries, v, window, limit, [&](const RowTile& tile, int64_t from) {
            char* dots = static_cast<char*>(out) + from * size;
            vector.dot(entries.element, tile, grad + v * grad_bytes, row_where, dots);
            if (!row_scale) return;
            for (int64_t i = 0; i < tile.count; ++i)
                if (size == 8)
                    reinterpret_cast<double*>(dots)[i] *= static_cast<const double*>(row_scale)[v];
                else
                    reinterpret_cast<float*>(dots)[i] *= static_cast<const float*>(row_scale)[v];
        });
    });
}

}  // namespace headrace
