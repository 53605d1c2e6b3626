#include "attend_time.h"

#include "row_parts.h"

namespace headrace {
namespace {

RowParts parts_of(const TimeAttention& in) { return {in.indptr, in.rows, in.count, in.heads * in.width()}; }

}  // namespace

void attend_time(const TimeAttention& in, int threads) {
    const VectorTable& vector = vector_table();
    for_row_parts(parts_of(in), in.rows, vector.attend_time_scratch(in), threads,
                  [&](int64_t, int64_t begin, int64_t end, char* scratch) { return vector.attend_time(in, begin, end, scratch); });
}

void attend_time_gradient(const TimeAttention& given, void* time, int threads) {
    const VectorTable& vector = vector_table();
    const int64_t number = given.element == Element::f64 ? 8 : 4;
    Array<char> coefficients(product_of(given.count, 2 * given.heads, number));
    TimeAttention in = given;
    in.coefficient = coefficients.data();
    const RowParts parts = parts_of(in);
    const int64_t scratch_bytes = vector.attend_time_scratch(in), width = 2 * in.times;
    Array<double> sums(product_of(parts.count(), width));
    std::fill_n(sums.data(), sums.size(), 0.0);
    for_row_parts(parts, in.rows, scratch_bytes, threads, [&](int64_t part, int64_t begin, int64_t end, char* scratch) {
        return vector.attend_time_row_gradient(in, begin, end, scratch, time ? sums.data() + part * width : nullptr);
    });
    if (time && in.element == Element::f64)
        add_parts(sums.data(), parts.count(), width, static_cast<double*>(time));
    else if (time)
        add_parts(sums.data(), parts.count(), width, static_cast<float*>(time));
    if (!in.grad_x) return;
    const RowParts columns(in.t_indptr, in.columns, in.count, 2 * in.heads * in.channels);
    for_row_parts(columns, in.columns, scratch_bytes, threads, [&](int64_t, int64_t begin, int64_t end, char* scratch) {
        return vector.attend_time_column_gradient(in, begin, end, scratch);
    });
}

}  // namespace headrace
