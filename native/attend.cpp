#include "attend.h"

#include "row_parts.h"

namespace headrace {
namespace {

RowParts parts_of(const Attention& in) { return {in.indptr, in.rows, in.count, in.heads * in.channels}; }

template <class Task>
void for_parts(const Attention& in, int threads, Task task) {
    for_row_parts(parts_of(in), in.rows, vector_table().attend_scratch(in), threads, task);
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

    const int64_t parts = attention ? parts_of(rows).count() : 0;
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
