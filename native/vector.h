// The loops that gain from wide registers, compiled once per instruction set (vector_*.cpp) and chosen at
// load time (dispatch.cpp). Plain pointers only: this header and those files must not pull in standard templates.
#pragma once

#include <stdint.h>

#include "philox.h"

namespace headrace {

// One frontier node to sample from: its neighbors are positions begin .. begin + degree of the graph.
struct DrawRow {
    uint64_t node;
    int64_t begin, degree, take;
};

// A read-only array of ids, or none.
struct Ids {
    const void* data = nullptr;
    bool wide = false;  // int64 in place of int32
    __attribute__((always_inline)) explicit operator bool() const { return data != nullptr; }
    __attribute__((always_inline)) int64_t operator[](int64_t i) const {
        return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
    }
};

// How the neighbors of a row are ranked: by weight, by a number that all rows share (LABOR), or by both. See vector_rank.cpp.
struct Ranking {
    const float* weight = nullptr;  // of every entry of the graph, positive; null for all the same
    bool labor = false;             // a random word is the neighbor's and not the entry's
    Ids indices;                    // of the graph, for LABOR
    uint32_t batch = 0;
    uint32_t dependency = 1;        // batches for which a neighbor keeps its word
};

enum class Element : int32_t { f32, f64, bf16, f16 };

// Entry e of row v reads row `ids[indices[e]]` (or `indices[e]`) of x, times weight[position[e]] (or weight[e]),
// times scale[indices[e]].
struct Entries {
    const int64_t* indptr = nullptr;
    int64_t rows = 0, count = 0;    // rows of indptr, entries of indices
    Ids indices, ids, position;
    int64_t columns = 0;            // indices lie below this: rows of x, or elements of ids
    int64_t x_rows = 0;             // ids lie below this
    const void* weight = nullptr;   // in the accumulator's type: fp64 for fp64 rows, else fp32
    const void* scale = nullptr;    // likewise
    const char* x = nullptr;
    int64_t x_stride = 0;           // bytes
    int64_t width = 0;              // elements of a row
    Element element = Element::f32;
};

// Where the results go: out[v] = factor of row v * the reduction of its entries.
struct RowsOut {
    char* out = nullptr;
    int64_t stride = 0;               // bytes from one row to the next
    bool mean = false;                // the factor is 1 / entries,
    const void* row_scale = nullptr;  // and this one's, in the accumulator's type
};

// Some neighbors of one row, with addresses and coefficients already looked up.
struct RowTile {
    const void* const* rows;   // address of each neighbor's row
    const void* coefficients;  // one per neighbor in the accumulator's type, or null for all ones
    int64_t count;             // neighbors of this row that stand in this tile
    int64_t ahead;             // further addresses behind `rows` that may be prefetched
    int64_t width;             // elements of a row
    int64_t first;             // position within its row of the tile's first neighbor
};

// Which elements of a whole those of x are: element j of row i stands at first + stride * (rows ? rows[i] : i) + j.
struct Slice {
    int64_t width = 0;              // elements of a row of x; 0 where x is the whole
    const int64_t* rows = nullptr;
    int64_t first = 0, stride = 0;
};

// What dropout does to elements of x. An element whose 16 random bits are below `dropped` is dropped.
struct DropoutJob {
    PhiloxKey key;
    uint32_t dropped;
    bool relu;
    double scale;
    const void* x;
    void* out;
    Slice slice;
};

// Attention over the entries of a CSR, or of its transpose in the pass over columns; see attend.h. "Sums" are fp64 for fp64 rows,
// else fp32. Arrays that a pass does not use are null.
struct Attention {
    const int64_t* indptr = nullptr;
    int64_t rows = 0, count = 0;  // rows of indptr, entries of indices
    Ids indices;
    Ids position;                 // of the transpose: where each entry stands in the graph itself
    int64_t columns = 0;          // indices lie below this
    int64_t own = 0;              // rows below this have one entry for themselves, at their end, and no other
    // Rows that are part of a whole have, for each, what takes an entry's position to that in the whole, and which row it is there.
    const int64_t* shift = nullptr;
    const int64_t* whole_rows = nullptr;
    int64_t whole_count = 0;      // entries of the whole: behind them come the own entries of its rows
    int64_t heads = 0, channels = 0;
    Element element = Element::f32;
    double slope = 0;             // of the leaky relu, below zero
    PhiloxKey key{0, 0};
    uint32_t dropped = 0;         // a coefficient whose random word is below this is dropped
    double kept = 1;              // what the others are scaled by
    const char* x = nullptr;
    const void* source = nullptr;     // sums [columns, heads], or null for pairs
    const void* target = nullptr;     // sums [rows, heads], or for pairs elements [rows, heads, channels]
    const void* attention = nullptr;  // sums [heads, channels], for pairs
    char* out = nullptr;
    void* peak = nullptr;             // sums [rows, 2, heads]: the largest score, and 1 / the sum of exp(score - largest)
    const char* grad = nullptr;       // elements [rows, heads, channels]
    void* facts = nullptr;            // sums [rows, 4, padded heads]: what the pass over columns reads of a row
    void* grad_target = nullptr;      // like target
    char* grad_x = nullptr;
    void* grad_source = nullptr;      // like source
};

// Attention over events; see attend_time.h. All rows are fp32 or all are fp64. Arrays that a pass does not use are null.
struct TimeAttention {
    const int64_t* indptr = nullptr;
    int64_t rows = 0, count = 0;  // rows of indptr, entries of indices
    Ids indices;
    int64_t columns = 0;          // rows of x: indices lie below this
    Ids edge_id;                  // of each entry's row of edge_x, or none: that of the entry's own number
    int64_t edges = 0;            // rows of edge_x
    int64_t heads = 0, channels = 0, edge_channels = 0, times = 0;  // columns of x, edge_x and the time encoding
    Element element = Element::f32;
    double slope = 1;             // of scores below zero
    PhiloxKey key{0, 0};
    uint32_t dropped = 0;         // a coefficient whose random word is below this is dropped
    double kept = 1;              // what the others are scaled by
    const void *query = nullptr, *x = nullptr, *edge_x = nullptr;  // query, out and grad are [heads, rows, width]
    const void *dt = nullptr, *weight = nullptr, *bias = nullptr;  // [count], [times], [times]
    void* out = nullptr;
    void* score = nullptr;        // [count, heads]
    void* peak = nullptr;         // [rows, 2, heads]: the largest score, and 1 / the sum of exp(score - largest)
    const void* grad = nullptr;
    void* grad_query = nullptr;
    void* coefficient = nullptr;  // [count, 2, heads]: what an entry's row was multiplied by, and the gradient of its score
    const int64_t* t_indptr = nullptr;  // of the transpose, and for each of its entries
    Ids t_indices, t_position;          // the row it belongs to, and where it stands there
    void* grad_x = nullptr;
    int64_t width() const { return channels + edge_channels + times; }
};

// The gates of a GRU's rows; see gru.h.
struct GruRows {
    int64_t rows = 0, width = 0;  // of memory
    Element element = Element::f32;
    const void *input = nullptr, *hidden = nullptr;  // [rows, 3, width]: reset, update, new, from the input and from the memory
    const void* memory = nullptr;                    // [rows, width]
    void *gates = nullptr, *out = nullptr;           // [rows, 3, width], [rows, width]
    const void* grad = nullptr;                      // of out
    void *grad_input = nullptr, *grad_hidden = nullptr, *grad_memory = nullptr;  // the last may be null
};

// Questions that share their candidates, as the softmax loss sees them; see shared_softmax.h. Rows of matrices here begin at multiples
// of `stride` or `across` floats, both multiples of 16, and what is behind their end is 0.
struct SoftmaxBlock {
    int64_t questions = 0, candidates = 0, width = 0;
    int64_t stride = 0;                        // of rows of `width` floats
    int64_t across = 0;                        // of rows of `candidates` floats
    float share = 0;                           // of a question in the loss
    const float* query = nullptr;              // [questions, stride]
    const float* const* answer = nullptr;      // [questions] rows of `width` floats
    const float* candidate = nullptr;          // [candidates, stride]
    const int32_t* answer_node = nullptr;      // [questions], and
    const int32_t* candidate_node = nullptr;   // [across]: equal ones do not count; null where none are
    const int64_t* hidden = nullptr;           // [hidden_count] question * candidates + candidate that do not count either
    int64_t hidden_count = 0;
    float* turned = nullptr;                   // scratch [width, across]
    float* scores = nullptr;                   // scratch [questions, across]
    float* own = nullptr;                      // [questions] the gradient of the answer's score
    float* to_query = nullptr;                 // [questions, stride] the gradient of queries
    float* to_candidate = nullptr;             // [candidates, stride] likewise of candidates
    double loss = 0;                           // the sum over questions
};

// How an edge's relation joins its end to a query: see link_step.h.
enum class Joined : int32_t { dot, distmult, complex };

// Heads as they stand in a table with vectors of `lanes` numbers: a power of two, or a multiple of a vector.
static inline int64_t padded_heads(int64_t heads, int64_t lanes) {
    int64_t padded = 1;
    while (padded < heads && padded < lanes) padded *= 2;
    return padded < heads ? (heads + lanes - 1) / lanes * lanes : padded;
}

struct VectorTable {
    const char* name;
    // Positions of the neighbors drawn for each row, `take` per row, one row after the other.
    void (*draw)(PhiloxKey key, uint32_t hop, bool replace, const DrawRow* rows, int64_t count, int64_t* scratch,
                 int64_t* positions);
    // Positions of the `take` neighbors of lowest rank of one row, in the row's order.
    void (*rank)(PhiloxKey key, uint32_t hop, const Ranking& ranking, const DrawRow& row, int64_t* scratch, int64_t* positions);
    // Sums over the entries of rows [begin, end), each row's in order; false on an index out of range.
    bool (*sum)(const Entries& entries, const RowsOut& to, int64_t begin, int64_t end);
    // The largest of them, likewise; where = which entry of the row (the first that reaches it), -1 in an empty row, which gives 0.
    bool (*max)(const Entries& entries, const RowsOut& to, int64_t begin, int64_t end, int32_t* where);
    // The gradient of max: accumulator += row[c] where `where[row][c]` names this edge.
    void (*max_gradient)(Element element, const RowTile& tile, const int32_t* const* where, const int32_t* slots,
                         void* accumulator);
    // dots[i] = <row, rows[i]>, over the columns c with where[c] == first + i if `where` is given.
    void (*dot)(Element element, const RowTile& tile, const void* row, const int32_t* where, void* dots);
    // out = accumulator * scale, in the element's type.
    void (*store)(Element element, const void* accumulator, double scale, int64_t width, void* out);
    // Elements [begin, end), begin being a multiple of 64; see dropout.h.
    void (*dropout)(Element element, const DropoutJob& job, const void* gate, int64_t begin, int64_t end);
    // Bytes of zeroed scratch that the three functions below need.
    int64_t (*attend_scratch)(const Attention& in);
    // out and peak of rows [begin, end); false on an index out of range. The same holds for the gradients.
    bool (*attend)(const Attention& in, int64_t begin, int64_t end, char* scratch);
    // facts and grad_target of rows [begin, end), and the attention's gradient over them.
    bool (*attend_row_gradient)(const Attention& in, int64_t begin, int64_t end, char* scratch, double* attention);
    // grad_x and grad_source of columns [begin, end), which are the rows of the transpose.
    bool (*attend_column_gradient)(const Attention& in, int64_t begin, int64_t end, char* scratch);
    // Bytes of zeroed scratch that the three functions below need.
    int64_t (*attend_time_scratch)(const TimeAttention& in);
    // out, score and peak of rows [begin, end); false on an index out of range. The same holds for the gradients.
    bool (*attend_time)(const TimeAttention& in, int64_t begin, int64_t end, char* scratch);
    // grad_query and coefficients of rows [begin, end), and the gradients of weight and bias over them, [2, times].
    bool (*attend_time_row_gradient)(const TimeAttention& in, int64_t begin, int64_t end, char* scratch, double* time);
    // grad_x of rows [begin, end) of x.
    bool (*attend_time_column_gradient)(const TimeAttention& in, int64_t begin, int64_t end, char* scratch);
    // gates and out, or the gradients, of rows [begin, end).
    void (*gru)(const GruRows& in, int64_t begin, int64_t end);
    void (*gru_gradient)(const GruRows& in, int64_t begin, int64_t end);
    // The softmax loss of a block of questions, with its gradients.
    void (*softmax_block)(SoftmaxBlock& block);
    // out = the query of an end's row and its relation's, of the relation's conjugate if `inverse`.
    void (*join)(Joined kind, const float* row, const float* relation, bool inverse, int64_t width, float* out);
    // The gradients of both, given that of the query; `to_relation` may be null. With `add`, it is added to what is there.
    void (*join_gradient)(Joined kind, const float* grad, const float* row, const float* relation, bool inverse, int64_t width,
                          float* to_row, float* to_relation, bool add);
    // row += by * other (rounded twice); by 1 if it is null.
    void (*add_row)(float* row, const float* other, const float* by, int64_t width);
    // What Adagrad adds to a row and to its state: see row_update.h.
    void (*adagrad)(const float* grad, const float* state, bool by_row, float lr, float eps, int64_t width, float* delta,
                    float* squares);
};

// What `draw` needs as scratch for rows that take at most `take` neighbors each.
static inline int64_t draw_scratch(int64_t take) {
    int64_t table = 64;
    while (table < 4 * take) table *= 2;
    return table;
}

// Likewise for `rank`: entries that may be among the lowest, and a copy to find the limit in.
static inline int64_t rank_room(int64_t take) { return 2 * take + 64; }
static inline int64_t rank_scratch(int64_t take) { return 2 * rank_room(take); }

constexpr int64_t kDrawGroup = 32;  // rows per call of draw, at the most

const VectorTable& vector_table();  // the widest that this processor runs

}  // namespace headrace
