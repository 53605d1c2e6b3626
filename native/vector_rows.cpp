// The table of an instruction set, and the small parts of aggregation. Compiled once per instruction set: HEADRACE_LEVEL names it;
// see vector.h.
#include "vector_wide.h"

namespace headrace::HEADRACE_LEVEL {

void draw(PhiloxKey, uint32_t, bool, const DrawRow*, int64_t, int64_t*, int64_t*);  // vector_draw.cpp
void rank(PhiloxKey, uint32_t, const Ranking&, const DrawRow&, int64_t*, int64_t*);  // vector_rank.cpp
void dropout(Element, const DropoutJob&, const void*, int64_t, int64_t);            // vector_dropout.cpp
int64_t attend_scratch(const Attention&);                                           // vector_attend.cpp
bool attend(const Attention&, int64_t, int64_t, char*);
bool attend_row_gradient(const Attention&, int64_t, int64_t, char*, double*);
bool attend_column_gradient(const Attention&, int64_t, int64_t, char*);
int64_t attend_time_scratch(const TimeAttention&);                                  // vector_attend_time.cpp
bool attend_time(const TimeAttention&, int64_t, int64_t, char*);
bool attend_time_row_gradient(const TimeAttention&, int64_t, int64_t, char*, double*);
bool attend_time_column_gradient(const TimeAttention&, int64_t, int64_t, char*);
void gru(const GruRows&, int64_t, int64_t);                                         // vector_gru.cpp
void gru_gradient(const GruRows&, int64_t, int64_t);
bool sum(const Entries&, const RowsOut&, int64_t, int64_t);                         // vector_sum.cpp
bool max(const Entries&, const RowsOut&, int64_t, int64_t, int32_t*);               // vector_max.cpp
void max_gradient(Element, const RowTile&, const int32_t* const*, const int32_t*, void*);
void softmax_block(SoftmaxBlock&);                                                  // vector_shared.cpp
void join(Joined, const float*, const float*, bool, int64_t, float*);               // vector_link.cpp
void join_gradient(Joined, const float*, const float*, const float*, bool, int64_t, float*, float*, bool);
void add_row(float*, const float*, const float*, int64_t);
void adagrad(const float*, const float*, bool, float, float, int64_t, float*, float*);

namespace {

void dot(Element element, const RowTile& tile, const void* with, const int32_t* where, void* dots) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        using V = Wide<S, 64>;
        constexpr int L = V::kLanes;
        const T* other = static_cast<const T*>(with);
        const int64_t bytes = tile.width * static_cast<int64_t>(sizeof(T)), known = tile.count + tile.ahead;
        for (int64_t i = 0; i < tile.count; ++i) {
            if (i + kAhead < known) prefetch_row(tile.rows[i + kAhead], bytes);
            const T* row = static_cast<const T*>(tile.rows[i]);
            const int32_t slot = static_cast<int32_t>(tile.first + i);
            S total = 0;
            int64_t j = 0;
            if (!where) {
                V partial{};
                for (; j + L <= tile.width; j += L) partial += load_lanes<E, V>(row + j) * load_lanes<E, V>(other + j);
                S lanes[L];
                partial.store(lanes);
                for (int l = 0; l < L; ++l) total += lanes[l];
            }
            for (; j < tile.width; ++j)
                if (!where || where[j] == slot) total += E::get(row + j) * E::get(other + j);
            static_cast<S*>(dots)[i] = total;
        }
    });
}

void store(Element element, const void* accumulator, double scale, int64_t width, void* out) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        constexpr int L = 64 / sizeof(S);
        const S* from = static_cast<const S*>(accumulator);
        const S factor = static_cast<S>(scale);
        T* to = static_cast<T*>(out);
        int64_t j = 0;
        for (; j + L <= width; j += L)
            store_lanes<E>(to + j, each([factor](auto x) { return x * factor; }, Wide<S, 64>::load(from + j)));
        for (; j < width; ++j) E::put(to + j, from[j] * factor);
    });
}

#define HEADRACE_STRING(name) #name
#define HEADRACE_NAME(name) HEADRACE_STRING(name)

}  // namespace

extern const VectorTable table;
const VectorTable table{HEADRACE_NAME(HEADRACE_LEVEL), draw, rank, sum, max, max_gradient, dot, store, dropout,
                        attend_scratch, attend, attend_row_gradient, attend_column_gradient, attend_time_scratch,
                        attend_time, attend_time_row_gradient, attend_time_column_gradient, gru, gru_gradient,
                        softmax_block, join, join_gradient, add_row, adagrad};

}  // namespace headrace::HEADRACE_LEVEL
