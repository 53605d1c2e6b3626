#include "link_step.h"

#include <cstring>

namespace headrace {
namespace {

constexpr int64_t kAhead = 4;   // rows under way
constexpr int64_t kPiece = 64;  // rows or relations that are updated at a time

void request(const float* row, int64_t width) {
    for (int64_t j = 0; j < width; j += 16) prefetch(row + j);
}

void grow(Array<float>& array, int64_t size) {
    if (array.size() >= size) return;
    array.reset();
    array = Array<float>(size);
    std::memset(array.data(), 0, array.bytes());  // what is behind the end of a row is summed too, and not used
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

void Groups::reserve(int64_t count, int64_t most) {
    first.resize(static_cast<size_t>(most) + 2);
    position.resize(static_cast<size_t>(count));
}

void Groups::sort(const int64_t* names) {
    const auto count = static_cast<int64_t>(position.size());
    std::fill(first.begin(), first.end(), 0);
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
    rows_.reserve(2 * in.edges + in.chunks * in.negatives, in.row_count);
    relations_.reserve(related ? in.edges : 0, related ? in.relations : 0);
    grow(to_end_, 2 * in.edges * stride);
    grow(to_candidate_, product_of(tasks, in.negatives, stride));
    grow(to_relation_, related ? in.edges * (in.reciprocal ? 2 : 1) * stride : 0);
    loss_.assign(static_cast<size_t>(tasks), 0);
    threads = useful_threads(threads, 2 * in.edges * (in.negatives + 1) * in.width, 1 << 18);
    while (scratch_.size() < static_cast<size_t>(threads)) scratch_.emplace_back();
    std::vector<SoftmaxBlock> laid;
    for (int t = 0; t < threads; ++t) {
        laid.push_back(scratch_[static_cast<size_t>(t)].lay(cuts.most(), in.negatives, in.width));
        laid.back().share = 1.0f / static_cast<float>(std::max<int64_t>(2 * in.edges, 1));
    }
    // Beside the blocks, positions are sorted for the updates: the last tasks are the first that are taken.
    crew_.run(tasks + 2, threads, [&](int64_t task, int worker) {
        const auto w = static_cast<size_t>(worker);
        if (task < tasks)
            block(in, cuts, task, laid[w], scratch_[w]);
        else if (task == tasks)
            relations_.sort(in.relation);
        else
            rows_.sort(in.place);
    });
    const int64_t of_rows = (in.row_count + kPiece - 1) / kPiece;
    const int64_t of_relations = related ? (in.relations + kPiece - 1) / kPiece : 0;
    crew_.run(of_rows + of_relations, threads, [&](int64_t task, int worker) {
        BlockScratch& scratch = scratch_[static_cast<size_t>(worker)];
        const int64_t piece = task < of_rows ? task : task - of_rows, begin = piece * kPiece;
        const int64_t end = std::min(begin + kPiece, task < of_rows ? in.row_count : in.relations);
        for (int64_t i = begin; i < end; ++i) {
            if (task < of_rows)
                update_row(in, cuts, i, scratch);
            else
                update_relation(in, i, scratch);
        }
    });
    double sum = 0;
    for (const double loss : loss_) sum += loss;
    return sum / static_cast<double>(std::max<int64_t>(2 * in.edges, 1));
}

void LinkWorkspace::block(const LinkStep& in, const QuestionBlocks& cuts, int64_t task, SoftmaxBlock& block, BlockScratch& scratch) {
    const VectorTable& vector = vector_table();
    const int64_t chunk = task / cuts.blocks, which = task % cuts.blocks, stride = block.stride, width = in.width, n = in.negatives;
    const int64_t count = cuts.count(which, 0), first = chunk * (in.edges / in.chunks) + cuts.begin(which, 0);
    const auto row = [&](int64_t position) -> const float* { return in.rows + in.at(in.place[position]) * width; };
    const auto parameters = [&](int64_t edge, bool of_head) {
        if (in.kind == Joined::dot) return in.parameters;
        return in.parameters + (in.relation[edge] + (of_head && in.reciprocal ? in.relations : 0)) * width;
    };
    const bool inverse = !in.reciprocal;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t edge = first + i, head = edge, tail = in.edges + edge;
        if (i + kAhead < count) {
            request(row(head + kAhead), width);
            request(row(tail + kAhead), width);
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
        if (j + kAhead < n) request(row(position + kAhead), width);
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
    std::memset(grad, 0, static_cast<size_t>(stride) * 4);
    const auto gradient = [&](int64_t position) {
        const int64_t drawn = position - 2 * in.edges;
        return drawn < 0 ? to_end_.data() + position * stride
                         : to_candidate_.data() + (drawn / n * cuts.blocks * n + drawn % n) * stride;
    };
    const int64_t last = static_cast<int64_t>(rows_.position.size()) - 1;
    for (int64_t i = rows_.first[static_cast<size_t>(row)]; i < rows_.first[static_cast<size_t>(row) + 1]; ++i) {
        request(gradient(rows_.position[static_cast<size_t>(std::min(i + kAhead, last))]), stride);
        const int64_t position = rows_.position[static_cast<size_t>(i)];
        const float* part = gradient(position);
        if (position >= 2 * in.edges && cuts.blocks > 1) {
            std::memcpy(of_blocks, part, static_cast<size_t>(stride) * 4);
            for (int64_t b = 1; b < cuts.blocks; ++b) vector.add_row(of_blocks, part + b * n * stride, nullptr, stride);
            part = of_blocks;
        }
        vector.add_row(grad, part, nullptr, stride);
    }
    const int64_t states = in.update.state_width(width);
    float *to = in.rows + in.at(row) * width, *state = in.state + in.at(row) * states;
    if (row + kAhead < in.row_count) {
        request(in.rows + in.at(row + kAhead) * width, width);
        request(in.state + in.at(row + kAhead) * states, states);
    }
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
        std::memset(grad, 0, static_cast<size_t>(stride) * 4);
        const int64_t last = static_cast<int64_t>(relations_.position.size()) - 1;
        for (int64_t i = begin; i < end; ++i) {
            const float* from = to_relation_.data() + side * in.edges * stride;
            request(from + relations_.position[static_cast<size_t>(std::min(i + kAhead, last))] * stride, stride);
            vector.add_row(grad, from + relations_.position[static_cast<size_t>(i)] * stride, nullptr, stride);
        }
        const int64_t at = relation + side * in.relations, state = at * in.relation_update.state_width(width);
        in.relation_update.row(vector, grad, in.parameter_state + state, width, delta, squares);
        vector.add_row(in.parameters + at * width, delta, nullptr, width);
        vector.add_row(in.parameter_state + state, squares, nullptr, in.relation_update.state_width(width));
    }
}

}  // namespace headrace
