#include "aggregate.h"

#include <cstring>
#include <vector>

#include "column_tile.h"
#include "common.h"
#include "memory.h"

namespace headrace {
namespace {

constexpr int64_t kWindow = 2048;  // entries looked up at a time
constexpr int64_t kSoon = 32;      // entries after which a row that is asked for is there

int64_t element_bytes(Element e) { return e == Element::f64 ? 8 : e == Element::f32 ? 4 : 2; }
int64_t sum_bytes(Element e) { return e == Element::f64 ? 8 : 4; }

// Turns entries into addresses and coefficients, a window at a time, for the loops that are not worth a specialized look-up.
class Window {
public:
    Window(const Entries& entries, FirstError& error)
        : entries_(entries), error_(error), rows_(kWindow), coefficients_(kWindow), columns_(kWindow) {}

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
    int64_t checked(int64_t value, int64_t bound) const {
        if (value >= 0 && value < bound) return value;
        error_.set("an index is out of range");
        return 0;
    }
    void fill(int64_t begin, int64_t end) {
        begin_ = begin;
        end_ = end;
        for (int64_t i = 0; i < end - begin; ++i) {
            columns_[i] = checked(entries_.indices[begin + i], entries_.columns);
            const int64_t row = entries_.ids ? checked(entries_.ids[columns_[i]], entries_.x_rows) : columns_[i];
            rows_[i] = entries_.x + row * entries_.x_stride;
        }
        if (entries_.weight || entries_.scale) {
            if (entries_.element == Element::f64)
                weigh(reinterpret_cast<double*>(coefficients_.data()));
            else
                weigh(reinterpret_cast<float*>(coefficients_.data()));
        }
    }
    template <class S>
    void weigh(S* out) const {
        const S *weight = static_cast<const S*>(entries_.weight), *scale = static_cast<const S*>(entries_.scale);
        for (int64_t i = 0; i < end_ - begin_; ++i) {
            const int64_t e = begin_ + i;
            const S w = weight ? weight[entries_.position ? checked(entries_.position[e], entries_.count) : e] : S{1};
            out[i] = scale ? w * scale[columns_[i]] : w;
        }
    }

    const Entries& entries_;
    FirstError& error_;
    int64_t begin_ = 0, end_ = 0;
    std::vector<const void*> rows_;
    std::vector<double> coefficients_;  // room for either type
    std::vector<int64_t> columns_;
};

// Calls task(begin, end) for ranges of rows of about equal work: entries and rows both count. Throws what they do, or set.
template <class Task>
void for_tasks(const Entries& entries, int threads, FirstError& error, Task task) {
    // A range of a graph's rows has an indptr that begins anywhere; what it says is checked by the task.
    const int64_t rows = entries.rows, first = entries.indptr[0];
    const int64_t work = std::clamp<int64_t>(entries.indptr[rows] - first, 0, entries.count) + rows;
    threads = useful_threads(threads, work * entries.width, 1 << 14);
    const int64_t tasks = threads == 1 ? 1 : std::min<int64_t>(rows, int64_t{threads} * 256);
    const auto row_at = [&](int64_t i) {
        const int64_t target = cut(work, tasks, i);
        int64_t low = 0, high = rows;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            entries.indptr[middle] < target + first - middle ? low = middle + 1 : high = middle;
        }
        return low;
    };
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < tasks; ++i) error.guard([&] { task(i ? row_at(i) : 0, i + 1 < tasks ? row_at(i + 1) : rows); });
    error.rethrow();
}

// Calls row(v, window, limit, accumulator) for every row, with a window and an accumulator per task.
template <class Row>
void for_rows(const Entries& entries, int threads, Row row) {
    FirstError error;
    for_tasks(entries, threads, error, [&](int64_t begin, int64_t end) {
        Window window(entries, error);
        std::vector<double> accumulator(static_cast<size_t>(entries.width) + 8);
        for (int64_t v = begin; v < end; ++v) {
            const int64_t from = entries.indptr[v], to = entries.indptr[v + 1];
            if (from < 0 || to < from || to > entries.count) return error.set("indptr must rise from 0 to the number of indices");
            row(v, window, entries.count, accumulator.data());
            if (error.any()) return;
        }
    });
}

// Calls use(tile, from) for the pieces of row v that fit a window.
template <class Use>
inline void for_tiles(const Entries& entries, int64_t v, Window& window, int64_t limit, Use use) {
    const int64_t begin = entries.indptr[v], end = entries.indptr[v + 1];
    for (int64_t from = begin; from < end; from += kWindow)
        use(window.tile(from, std::min(from + kWindow, end), begin, limit), from);
}

void sum_rows(const Entries& entries, const RowsOut& to, int threads) {
    const VectorTable& vector = vector_table();
    FirstError error;
    for_tasks(entries, threads, error, [&](int64_t begin, int64_t end) {
        if (!vector.sum(entries, to, begin, end)) error.set("indptr does not rise, or an index is out of range");
    });
}

// `bytes` of each row that an index may name, from `offset` on, one after the other. False if ids name a row that x does not have.
bool pack(const Entries& in, int64_t offset, int64_t bytes, int64_t stride, char* out, int threads) {
    bool ok = true;
    threads = useful_threads(threads, in.columns * bytes, 1 << 16);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1) reduction(&& : ok)
    for (int64_t i = 0; i < in.columns; ++i) {
        const int64_t row = in.ids ? in.ids[i] : i;
        if (row >= 0 && row < in.x_rows)
            std::memcpy(out + i * stride, in.x + row * in.x_stride + offset, static_cast<size_t>(bytes));
        else
            ok = false;
    }
    return ok;
}

// Sums slices of columns, one after the other, from a copy of the slice. In place the slice's lines would lie a row apart, where
// they meet in few sets of the caches, and no more of them would stay. False if there is no copy: no memory, or a wrong id, which
// may be one that no entry names.
bool sum_slices(const Entries& entries, const RowsOut& to, int64_t tile, int threads) {
    const int64_t size = element_bytes(entries.element), lanes = 64 / sum_bytes(entries.element);
    const int64_t most = std::min(tile + lanes - 1, entries.width);  // what is less than a vector joins the slice before it
    const int64_t stride = (most * size + 63) / 64 * 64;
    Array<char> packed;
    try {
        packed = Array<char>(entries.columns * stride);
    } catch (const std::bad_alloc&) {
        return false;
    }
    for (int64_t column = 0, count; column < entries.width; column += count) {
        const int64_t left = entries.width - column;
        count = left - tile < lanes ? left : tile;
        Entries slice = entries;
        RowsOut part = to;
        slice.width = count;
        slice.x_stride = (count * size + 31) / 32 * 32;
        if (!pack(entries, column * size, count * size, slice.x_stride, packed.data(), threads)) return false;
        slice.x = packed.data();
        slice.x_rows = entries.columns;
        slice.ids = {};
        part.out += column * size;
        sum_rows(slice, part, threads);
    }
    return true;
}

// The columns of a slice: whole lines, or the width if it is to be summed at once.
int64_t slice_columns(const Entries& in, int64_t tile) {
    const int64_t size = element_bytes(in.element), line = 64 / size;
    if (tile > 0) return (std::min(tile, in.width) + line - 1) / line * line;
    const double entries = static_cast<double>(in.indptr[in.rows] - in.indptr[0]);
    const double reads = entries / static_cast<double>(std::max<int64_t>(in.columns, 1));
    return column_tile(in.columns, in.width, size, last_level_cache(), reads);
}

}  // namespace

void aggregate(const Entries& entries, Reduce reduce, const void* row_scale, int64_t tile, char* out, int32_t* where, int threads) {
    const RowsOut to{out, entries.width * element_bytes(entries.element), reduce == Reduce::mean, row_scale};
    if (reduce != Reduce::max) {
        const int64_t columns = slice_columns(entries, tile);
        if (columns >= entries.width || !sum_slices(entries, to, columns, threads)) sum_rows(entries, to, threads);
        return;
    }
    const VectorTable& vector = vector_table();
    FirstError error;
    for_tasks(entries, threads, error, [&](int64_t begin, int64_t end) {
        if (!vector.max(entries, to, begin, end, where)) error.set("indptr does not rise, or an index is out of range");
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
                if (i + kSoon < tile.count + tile.ahead)
                    for (int64_t j = 0; j < entries.width; j += 16) prefetch(where + columns[i + kSoon] * entries.width + j);
                taken[i] = where + columns[i] * entries.width;
                slots[i] = static_cast<int32_t>(static_cast<uint64_t>(entries.position[from + i]) -
                                                static_cast<uint64_t>(forward[columns[i]]));  // both as they were given
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
