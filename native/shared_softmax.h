// The softmax loss of questions that share candidates: how unlikely each question's answer is among itself and the candidates of
// its chunk, with the gradients of queries, answers and candidates, a block of questions at a time so that all of it stays in a cache.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "memory.h"
#include "vector.h"

namespace headrace {

constexpr int64_t kBlockQuestions = 256;

inline int64_t padded16(int64_t n) { return (n + 15) / 16 * 16; }

// How questions are cut into blocks: by their number alone, so that sums over blocks do not depend on threads. A block takes its
// share of either half of a chunk, for the two questions of an edge stand half a chunk apart.
struct QuestionBlocks {
    int64_t chunks, questions, blocks;  // questions and blocks of a chunk
    QuestionBlocks(int64_t chunks, int64_t questions)
        : chunks(chunks), questions(questions),
          blocks(std::max<int64_t>((questions + kBlockQuestions - 1) / kBlockQuestions, 1)) {}
    int64_t tasks() const { return chunks * blocks; }
    int64_t half(int side) const { return side ? questions - questions / 2 : questions / 2; }
    // The first question of a block on a side of its chunk.
    int64_t begin(int64_t block, int side) const { return side * half(0) + cut(half(side), blocks, block); }
    int64_t count(int64_t block, int side) const { return begin(block + 1, side) - begin(block, side); }
    int64_t most() const { return (questions / 2 + blocks - 1) / blocks + (questions - questions / 2 + blocks - 1) / blocks; }
};

// Candidates that do not count, [m] of chunk, question and candidate as one number, by the block that they are in.
class HiddenCandidates {
public:
    void sort(const QuestionBlocks& cuts, int64_t candidates, const int64_t* hidden, int64_t count);
    const int64_t* of(int64_t task) const { return local_.data() + begin_[static_cast<size_t>(task)]; }
    int64_t count(int64_t task) const { return begin_[static_cast<size_t>(task) + 1] - begin_[static_cast<size_t>(task)]; }

private:
    std::vector<int64_t> begin_, local_, task_;
};

// Memory of one thread for a block.
class BlockScratch {
public:
    // A block with places for all that is not given to it from elsewhere.
    SoftmaxBlock lay(int64_t questions, int64_t candidates, int64_t width);
    float* query = nullptr;
    float* candidate = nullptr;
    const float** answer = nullptr;
    int32_t *answer_node = nullptr, *candidate_node = nullptr;
    float* row[2] = {};  // two rows for sums

private:
    Array<char> memory_;
    int64_t questions_ = -1;
    SoftmaxBlock block_;
};

struct SharedSoftmax {
    int64_t chunks = 0, questions = 0, candidates = 0, width = 0;
    const float *query = nullptr, *answer = nullptr, *candidate = nullptr;
    const int64_t* hidden = nullptr;
    int64_t hidden_count = 0;
    float *to_query = nullptr, *to_answer = nullptr, *to_candidate = nullptr;
};

// The mean over all questions; gradients are of that mean.
double shared_softmax(const SharedSoftmax& in, int threads);

}  // namespace headrace
