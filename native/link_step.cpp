#include "link_step.h"

#include <cstring>

namespace headrace {
namespace {

constexpr int64_t kAhead = 4;  // rows under way

void grow(Array<float>& array, int64_t size) {
    if (array.size() >= size) return;
    array.reset();
    array = Array<float>(size);
}

void check(const LinkStep& in) {
    const int64_t places = 2 * in.edges + in.chunks * in.negatives;
    for (int64_t i = 0; i < places; ++i) require(in.place[i] >= 0 && in.place[i] < in.row_count, "place out of range");
    for (int64_t i = 0; i < in.row_count; ++i) require(in.at(i) >= 0 && in.at(i) < in.table_rows, "id out of range");
    if (in.kind == Joined::dot) return;
    for (int64_t i = 0; i < in.edges; ++i)
        require(in.relation[i] >= 0 && in.relation[i] < in.relations, "relation out of range");
}

}  // namespace

void Groups::sort(const int64_t* names, int64_t count, int64_t most) {
    first.assign(static_cast<size_t>(most) + 2, 0);
    position.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) ++first[static_cast<size_t>(names[i]) + 2];
    for (size_t i = 2; i < first.size(); ++i) first[i] += first[i - 1];
    for (int64_t i = 0; i < count; ++i) position[static_cast<size_t>(first[static_cast<size_t>(names[i]) + 1]++)] = i;
}

double LinkWorkspace::step(const LinkStep& in, int threads) {
    check(in);
    const QuestionBlocks cuts(in.chunks, 2 * in.edges / in.chunks);
    const int64_t stride = padded16(in.width), tasks = cuts.tasks();
    const bool related = in.kind != Joined::dot;
    hidden_.sort(cuts, in.negatives, in.hidden, in.hidden_count);
    rows_.sort(in.place, 2 * in.edges + in.chunks * in.negatives, in.row_count);
    if (related) relations_.sort(in.relation, in.edges, in.relations);
    grow(to_end_, 2 * in.edges * stride);
    grow(to_candidate_, tasks * in.negatives * stride);
    grow(to_relation_, related ? in.edges * (in.reciprocal ? 2 : 1) * stride : 0);
    loss_.assign(static_cast<size_t>(tasks), 0);
    threads = useful_threads(threads, 2 * in.edges * (in.negatives + 1) * in.width, 1 << 18);
    if (scratch_.size() < static_cast<size_t>(threads)) scratch_.resize(static_cast<size_t>(threads));
    FirstError error;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        BlockScratch& scratch = scratch_[static_cast<size_t>(omp_get_thread_num())];
        SoftmaxBlock laid;
        try {
            laid = scratch.lay(cuts.most(), in.negatives, in.width);
        } catch (const std::bad_alloc&) {
            error.set("there is not enough memory for a thread's scratch");
        }
        laid.share = 1.0f / static_cast<float>(std::max<int64_t>(2 * in.edges, 1));
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; ++task)
            if (!error.any()) block(in, cuts, task, laid, scratch);
#pragma omp for schedule(dynamic, 64) nowait
        for (int64_t row = 0; row < in.row_count; ++row)
            if (!error.any()) update_row(in, cuts, row, scratch);
        if (related) {
#pragma omp for schedule(dynamic, 64)
            for (int64_t relation = 0; relation < in.relations; ++relation)
                if (!error.any()) update_relation(in, relation, scratch);
        }
    }
    error.rethrow();
    double sum = 0;
    for (const double loss : loss_) sum += loss;
    return sum / static_cast<double>(std::max<int64_t>(2 * in.edges, 1));
}

void LinkWorkspace::block(const LinkStep& in, const QuestionBlocks& cuts, int64_t task, SoftmaxBlock& block, BlockScratch& scratch) {
    const VectorTable& vector = vector_table();
    const int64_t chunk = task / cuts.blocks, which = task % cuts.blocks, stride = block.stride, width = in.width, n = in.negatives;
    const int64_t count = cuts.count(which, 0), first = chunk * (in.edges / in.chunks) + cuts.begin(which, 0);
    const auto row = [&](int64_t position) -> const float* { return in.rows + in.at(in.place[position]) * width; };
    const auto request = [&](int64_t position) {
        for (int64_t j = 0; j < width; j += 16) prefetch(row(position) + j);
    };
    const auto parameters = [&](int64_t edge, bool of_head) {
        if (in.kind == Joined::dot) return in.parameters;
        return in.parameters + (in.relation[edge] + (of_head && in.reciprocal ? in.relations : 0)) * width;
    };
    const bool inverse = !in.reciprocal;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t edge = first + i, head = edge, tail = in.edges + edge;
        if (i + kAhead < count) {
            request(head + kAhead);
            request(tail + kAhead);
        }
        vector.join(in.kind, row(head), parameters(edge, false), false, width, scratch.query + i * stride);
        vector.join(in.kind, row(tail), parameters(edge, true), inverse, width, scratch.query + (count + i) * stride);
        scratch.answer[i] = row(tail);
        scratch.answer[count + i] = row(head);
        scratch.answer_node[i] = static_cast<int32_t>(in.place[tail]);
        scratch.answer_node[count + i] = static_cast<int32_t>(in.place[head]);
    }
    for (int64_t j = 0; j < block.across; ++j) scratch.candidate_node[j] = -1;
    for (int64_t j = 0; j < n; ++j) {
        const int64_t position = 2 * in.edges + chunk * n + j;
        if (j + kAhead < n) request(position + kAhead);
        std::memcpy(scratch.candidate + j * stride, row(position), static_cast<size_t>(width) * 4);
        scratch.candidate_node[j] = static_cast<int32_t>(in.place[position]);
    }
    block.questions = 2 * count;
    block.answer_node = scratch.answer_node;
    block.candidate_node = scratch.candidate_node;
    block.hidden = hidden_.of(task);
    block.hidden_count = hidden_.count(task);
    block.to_candidate = to_candidate_.data() + task * n * stride;
    vector.softmax_block(block);
    loss_[static_cast<size_t>(task)] = block.loss;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t edge = first + i;
        float *to_head = to_end_.data() + edge * stride, *to_tail = to_end_.data() + (in.edges + edge) * stride;
        float *to_relation = to_relation_.data() + edge * stride, *to_other = to_relation + in.edges * stride;
        const float *asked_tail = block.to_query + i * stride, *asked_head = block.to_query + (count + i) * stride;
        vector.join_gradient(in.kind, asked_tail, row(edge), parameters(edge, false), false, width, to_head, to_relation, false);
        vector.join_gradient(in.kind, asked_head, row(in.edges + edge), parameters(edge, true), inverse, width, to_tail,
                             in.reciprocal ? to_other : to_relation, !in.reciprocal);
        vector.add_row(to_head, block.query + (count + i) * stride, block.own + count + i, width);
        vector.add_row(to_tail, block.query + i * stride, block.own + i, width);
    }
}

void LinkWorkspace::update_row(const LinkStep& in, const QuestionBlocks& cuts, int64_t row, BlockScratch& scratch) {
    const VectorTable& vector = vector_table();
    const int64_t stride = padded16(in.width), width = in.width, n = in.negatives;
    float *grad = scratch.row[0], *of_blocks = scratch.row[1];
    std::memset(grad, 0, static_cast<size_t>(width) * 4);
    for (int64_t i = rows_.first[static_cast<size_t>(row)]; i < rows_.first[static_cast<size_t>(row) + 1]; ++i) {
        const int64_t position = rows_.position[static_cast<size_t>(i)], drawn = position - 2 * in.edges;
        if (drawn < 0) {
            vector.add_row(grad, to_end_.data() + position * stride, nullptr, width);
            continue;
        }
        const float* part = to_candidate_.data() + (drawn / n * cuts.blocks * n + drawn % n) * stride;
        if (cuts.blocks > 1) {
            std::memcpy(of_blocks, part, static_cast<size_t>(width) * 4);
            for (int64_t b = 1; b < cuts.blocks; ++b) vector.add_row(of_blocks, part + b * n * stride, nullptr, width);
            part = of_blocks;
        }
        vector.add_row(grad, part, nullptr, width);
    }
    const int64_t states = in.update.state_width(width);
    float *to = in.rows + in.at(row) * width, *state = in.state + in.at(row) * states;
    if (in.delta) {
        in.update.row(vector, grad, state, width, in.delta + row * width, in.delta_state + row * states);
        return;
    }
    float *delta = of_blocks, *squares = scratch.query;
    in.update.row(vector, grad, state, width, delta, squares);
    vector.add_row(to, delta, nullptr, width);
    vector.add_row(state, squares, nullptr, states);
}

void LinkWorkspace::update_relation(const LinkStep& in, int64_t relation, BlockScratch& scratch) {
    const VectorTable& vector = vector_table();
    const int64_t begin = relations_.first[static_cast<size_t>(relation)], end = relations_.first[static_cast<size_t>(relation) + 1];
    if (begin == end) return;
    const int64_t stride = padded16(in.width), width = in.width;
    for (int side = 0; side < (in.reciprocal ? 2 : 1); ++side) {
        float *grad = scratch.row[0], *delta = scratch.row[1], *squares = scratch.query;
        std::memset(grad, 0, static_cast<size_t>(width) * 4);
        for (int64_t i = begin; i < end; ++i) {
            const int64_t edge = side * in.edges + relations_.position[static_cast<size_t>(i)];
            vector.add_row(grad, to_relation_.data() + edge * stride, nullptr, width);
        }
        const int64_t at = relation + side * in.relations, state = at * in.relation_update.state_width(width);
        in.relation_update.row(vector, grad, in.parameter_state + state, width, delta, squares);
        vector.add_row(in.parameters + at * width, delta, nullptr, width);
        vector.add_row(in.parameter_state + state, squares, nullptr, in.relation_update.state_width(width));
    }
}

}  // namespace headrace
