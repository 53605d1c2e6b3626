// A training step of link prediction where scores are products of two rows: queries from rows and relations, the softmax loss of
// both questions of each edge, gradients, and what the optimizers make of them.
//
// The sums are those of a loop with shared_softmax and PyTorch's autograd, in the same order, so the bits are too.
#pragma once

#include <cstdint>
#include <vector>

#include "crew.h"
#include "row_update.h"
#include "shared_softmax.h"

namespace headrace {

struct LinkStep {
    Joined kind = Joined::dot;
    bool reciprocal = false;             // questions for heads have relations of their own, behind the others
    int64_t edges = 0, chunks = 1, negatives = 0, width = 0;
    int64_t row_count = 0, relations = 0;
    int64_t table_rows = 0;              // of `rows` and `state`
    const int64_t* ids = nullptr;        // [row_count] where in `rows` and `state` each row is, none twice; null: row i is there
    float* rows = nullptr;               // [table_rows, width]
    float* state = nullptr;              // [table_rows, state]
    const int64_t* place = nullptr;      // [2 edges + chunks * negatives] which row: heads, tails, negatives
    const int64_t* relation = nullptr;   // [edges]
    const int64_t* hidden = nullptr;     // as in SharedSoftmax, beside negatives that are the answer
    int64_t hidden_count = 0;
    float* parameters = nullptr;         // [relations, twice if reciprocal; width]: updated
    float* parameter_state = nullptr;    // likewise
    RowUpdate update, relation_update;
    int64_t at(int64_t row) const { return ids ? ids[row] : row; }
    float* delta = nullptr;              // [row_count, width] what is to be added to rows; null: it is added to them
    float* delta_state = nullptr;        // [row_count, state]
};

// Positions grouped by what they name, in their order: those of name i are position[first[i]] .. position[first[i + 1] - 1].
class Groups {
public:
    void reserve(int64_t count, int64_t most);  // positions and names that there are
    void sort(const int64_t* names);
    std::vector<int64_t> first, position;
};

// Memory that one step leaves to the next.
class LinkWorkspace {
public:
    // The mean loss over questions.
    double step(const LinkStep& in, int threads);

private:
    void block(const LinkStep& in, const QuestionBlocks& cuts, int64_t task, SoftmaxBlock& block, BlockScratch& scratch);
    void update_row(const LinkStep& in, const QuestionBlocks& cuts, int64_t row, BlockScratch& scratch);
    void update_relation(const LinkStep& in, int64_t relation, BlockScratch& scratch);

    Crew crew_;
    std::vector<BlockScratch> scratch_;
    HiddenCandidates hidden_;
    Array<float> to_end_, to_candidate_, to_relation_;
    std::vector<double> loss_;
    Groups rows_, relations_;
};

}  // namespace headrace
