#include "shared_softmax.h"

#include <cstring>

namespace headrace {

void HiddenCandidates::sort(const QuestionBlocks& cuts, int64_t candidates, const int64_t* hidden, int64_t count) {
    begin_.assign(static_cast<size_t>(cuts.tasks()) + 2, 0);
    local_.resize(static_cast<size_t>(count));
    task_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        require(hidden[i] >= 0 && hidden[i] < cuts.chunks * cuts.questions * candidates, "hidden candidate out of range");
        const int64_t question = hidden[i] / candidates % cuts.questions;
        const int side = question >= cuts.half(0);
        const int64_t at = question - side * cuts.half(0);
        int64_t block = at * cuts.blocks / cuts.half(side);
        while (cuts.begin(block, side) > question) --block;
        while (cuts.begin(block + 1, side) <= question) ++block;
        task_[static_cast<size_t>(i)] = hidden[i] / candidates / cuts.questions * cuts.blocks + block;
        ++begin_[static_cast<size_t>(task_[static_cast<size_t>(i)]) + 2];
    }
    for (size_t t = 2; t < begin_.size(); ++t) begin_[t] += begin_[t - 1];
    for (int64_t i = 0; i < count; ++i) {
        const int64_t task = task_[static_cast<size_t>(i)], block = task % cuts.blocks;
        const int64_t question = hidden[i] / candidates % cuts.questions;
        const int side = question >= cuts.half(0);
        const int64_t row = question - cuts.begin(block, side) + (side ? cuts.count(block, 0) : 0);
        local_[static_cast<size_t>(begin_[static_cast<size_t>(task) + 1]++)] = row * candidates + hidden[i] % candidates;
    }
}

SoftmaxBlock BlockScratch::lay(int64_t questions, int64_t candidates, int64_t width) {
    if (questions == questions_ && candidates == block_.candidates && width == block_.width) return block_;
    questions_ = -1;  // until all is there
    SoftmaxBlock block;
    block.candidates = candidates;
    block.width = width;
    block.stride = padded16(width);
    block.across = padded16(candidates);
    const int64_t rows = padded16(std::max<int64_t>(questions, 1));  // a row at least: updates use it too
    const int64_t floats[] = {rows * block.stride, candidates * block.stride, width * block.across, rows * block.across, rows,
                              rows * block.stride, 2 * rows, rows, block.across, block.stride, block.stride};
    int64_t total = 0;
    for (const int64_t f : floats) total += padded16(f);
    if (memory_.size() < total * 4) {
        memory_.reset();
        memory_ = Array<char>(total * 4);
    }
    // What is behind the end of a row of queries or candidates is never written.
    std::memset(memory_.data(), 0, static_cast<size_t>(padded16(floats[0]) + padded16(floats[1])) * 4);
    char* at = memory_.data();
    const auto take = [&](int which) {
        char* place = at;
        at += padded16(floats[which]) * 4;
        return reinterpret_cast<float*>(place);
    };
    block.query = query = take(0);
    block.candidate = candidate = take(1);
    block.turned = take(2);
    block.scores = take(3);
    block.own = take(4);
    block.to_query = take(5);
    block.answer = answer = reinterpret_cast<const float**>(take(6));
    answer_node = reinterpret_cast<int32_t*>(take(7));
    candidate_node = reinterpret_cast<int32_t*>(take(8));
    for (int i = 0; i < 2; ++i) row[i] = take(9 + i);
    questions_ = questions;
    return block_ = block;
}

double shared_softmax(const SharedSoftmax& in, int threads) {
    const QuestionBlocks cuts(in.chunks, in.questions);
    const int64_t width = in.width, stride = padded16(width), n = in.candidates, total = in.chunks * in.questions;
    if (total == 0) {
        require(in.hidden_count == 0, "hidden candidate out of range");
        if (in.chunks > 0 && n > 0) std::memset(in.to_candidate, 0, static_cast<size_t>(in.chunks * n * width) * 4);
        return 0;
    }
    HiddenCandidates hidden;
    hidden.sort(cuts, n, in.hidden, in.hidden_count);
    Array<float> parts(product_of(cuts.tasks(), n, stride));
    std::vector<double> loss(static_cast<size_t>(cuts.tasks()));
    const VectorTable& vector = vector_table();
    const size_t bytes = static_cast<size_t>(width) * 4;
    threads = useful_threads(threads, cuts.tasks(), 1);
    FirstError error;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        BlockScratch scratch;
        SoftmaxBlock block;
        error.guard([&] { block = scratch.lay(cuts.most(), n, width); });
        block.share = 1.0f / static_cast<float>(std::max<int64_t>(total, 1));
#pragma omp for schedule(static)
        for (int64_t task = 0; task < cuts.tasks(); ++task) {
            if (error.any()) continue;
            const int64_t chunk = task / cuts.blocks, which = task % cuts.blocks;
            block.questions = 0;
            const auto each_question = [&](auto body) {
                int64_t local = 0;
                for (int side = 0; side < 2; ++side)
                    for (int64_t i = 0; i < cuts.count(which, side); ++i)
                        body(local++, (chunk * in.questions + cuts.begin(which, side) + i) * width);
            };
            each_question([&](int64_t local, int64_t at) {
                std::memcpy(scratch.query + local * stride, in.query + at, bytes);
                scratch.answer[local] = in.answer + at;
                ++block.questions;
            });
            for (int64_t j = 0; j < n; ++j)
                std::memcpy(scratch.candidate + j * stride, in.candidate + (chunk * n + j) * width, bytes);
            block.hidden = hidden.of(task);
            block.hidden_count = hidden.count(task);
            block.to_candidate = parts.data() + task * n * stride;
            vector.softmax_block(block);
            loss[static_cast<size_t>(task)] = block.loss;
            each_question([&](int64_t local, int64_t at) {
                std::memcpy(in.to_query + at, block.to_query + local * stride, bytes);
                std::memset(in.to_answer + at, 0, bytes);
                vector.add_row(in.to_answer + at, block.query + local * stride, block.own + local, width);
            });
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < in.chunks * n; ++row) {
            float* to = in.to_candidate + row * width;
            for (int64_t b = 0; b < cuts.blocks; ++b) {
                const float* part = parts.data() + ((row / n * cuts.blocks + b) * n + row % n) * stride;
                if (b)
                    vector.add_row(to, part, nullptr, width);
                else
                    std::memcpy(to, part, bytes);
            }
        }
    }
    error.rethrow();
    double sum = 0;
    for (const double l : loss) sum += l;
    return sum / static_cast<double>(std::max<int64_t>(total, 1));
}

}  // namespace headrace
