// The softmax loss of questions that share candidates. Compiled once per instruction set: see vector.h.
#include "vector_product.h"
#include "vector_softmax.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

using V = Wide<float, 64>;
constexpr int64_t padded8(int64_t n) { return (n + 7) / 8 * 8; }
constexpr float kUnseen = -1e9f;  // LOW of headrace.nn.link_losses

// All lanes as one number: the upper half onto the lower, and so on.
template <class Combine>
HEADRACE_INLINE float folded(V v, Combine combine) {
    auto quarter = combine(low(low(v)), high(low(v)));
    const auto upper = combine(low(high(v)), high(high(v)));
    quarter = combine(quarter, upper);
    quarter = combine(quarter, swap_twos(quarter));
    return combine(quarter, swap_ones(quarter)).part[0][0];
}
HEADRACE_INLINE float across_sum(V v) {
    return folded(v, [](auto a, auto b) { return a + b; });
}

HEADRACE_INLINE float dot(const float* a, const float* b, int64_t width) {
    V sum{};
    int64_t j = 0;
    for (; j + 16 <= width; j += 16) sum += V::load(a + j) * V::load(b + j);
    float total = across_sum(sum);
    for (; j < width; ++j) total += a[j] * b[j];
    return total;
}

void turn(const SoftmaxBlock& in) {
    for (int64_t j = 0; j < in.across; j += 16) {
        const int64_t lanes = in.candidates - j < 16 ? in.candidates - j : 16;
        for (int64_t k = 0; k < in.width; ++k) {
            float* to = in.turned + k * in.across + j;
            for (int64_t l = 0; l < lanes; ++l) to[l] = in.candidate[(j + l) * in.stride + k];
            for (int64_t l = lanes; l < 16; ++l) to[l] = 0;
        }
    }
}

void hide(const SoftmaxBlock& in) {
    if (in.answer_node)
        for (int64_t q = 0; q < in.questions; ++q) {
            float* scores = in.scores + q * in.across;
            const int32_t answer = in.answer_node[q];
            for (int64_t j = 0; j < in.across; ++j) scores[j] = in.candidate_node[j] == answer ? kUnseen : scores[j];
        }
    for (int64_t i = 0; i < in.hidden_count; ++i)
        in.scores[in.hidden[i] / in.candidates * in.across + in.hidden[i] % in.candidates] = kUnseen;
    for (int64_t q = 0; q < in.questions; ++q)
        for (int64_t j = in.candidates; j < in.across; ++j) in.scores[q * in.across + j] = -__builtin_inff();
}

// The highest score of a question.
HEADRACE_INLINE float highest_of(const float* scores, int64_t across, float positive) {
    V most = V::all(positive);
    for (int64_t j = 0; j < across; j += 16) most = larger(V::load(scores + j), most);
    return folded(most, [](auto a, auto b) { return larger(a, b); });
}

// Scores become exp(score - highest); their sum.
HEADRACE_INLINE float exponentiate(float* scores, int64_t across, float highest) {
    const V peak = V::all(highest);
    V sum{};
    for (int64_t j = 0; j < across; j += 16) {
        const V likely = exponential(V::load(scores + j) - peak);
        likely.store(scores + j);
        sum += likely;
    }
    return across_sum(sum);
}

// Scores become gradients, and `own` those of the answers' scores. One loop after the other over sixteen questions: a question's
// chain of operations is long, and a processor that has only one kind of them before it works at several questions at a time.
void normalize(SoftmaxBlock& in) {
    for (int64_t from = 0; from < in.questions; from += 16) {
        const int64_t count = in.questions - from < 16 ? in.questions - from : 16;
        alignas(64) float positive[16] = {}, highest[16] = {}, total[16] = {}, mine[16], scale[16];
        float* scores = in.scores + from * in.across;
        for (int64_t i = 0; i < count; ++i) positive[i] = dot(in.query + (from + i) * in.stride, in.answer[from + i], in.width);
        for (int64_t i = 0; i < count; ++i) highest[i] = highest_of(scores + i * in.across, in.across, positive[i]);
        for (int64_t i = 0; i < count; ++i) total[i] = exponentiate(scores + i * in.across, in.across, highest[i]);
        exponential(V::load(positive) - V::load(highest)).store(mine);
        for (int64_t i = 0; i < 16; ++i) {
            total[i] += mine[i];
            scale[i] = in.share / total[i];
        }
        for (int64_t i = 0; i < count; ++i) {
            in.own[from + i] = mine[i] * scale[i] - in.share;
            const V by = V::all(scale[i]);
            for (int64_t j = i * in.across; j < (i + 1) * in.across; j += 16) (V::load(scores + j) * by).store(scores + j);
        }
        for (int64_t i = 0; i < count; ++i) {
            const double peak = static_cast<double>(highest[i]);
            in.loss += __builtin_log(static_cast<double>(total[i])) + peak - static_cast<double>(positive[i]);
        }
    }
}

}  // namespace

void softmax_block(SoftmaxBlock& in) {
    const int64_t width = padded8(in.width), candidates = padded8(in.candidates);
    turn(in);
    product({in.query, in.stride, 1}, in.turned, in.across, in.width, in.questions, candidates, in.scores, in.across);
    hide(in);
    in.loss = 0;
    normalize(in);
    product({in.scores, in.across, 1}, in.candidate, in.stride, in.candidates, in.questions, width, in.to_query, in.stride);
    product({in.scores, 1, in.across}, in.query, in.stride, in.questions, in.candidates, width, in.to_candidate, in.stride);
    for (int64_t q = 0; q < in.questions; ++q) {
        float* __restrict to = in.to_query + q * in.stride;
        const float* __restrict answer = in.answer[q];
        const float own = in.own[q];
        for (int64_t j = 0; j < in.width; ++j) to[j] += own * answer[j];
    }
}

}  // namespace headrace::HEADRACE_LEVEL
