// The softmax loss of questions that share candidates. Compiled once per instruction set: see vector.h.
#include "vector_product.h"
#include "vector_softmax.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

using V = Wide<float, 64>;
constexpr float kUnseen = -1e9f;  // LOW of headrace.nn.link_losses

HEADRACE_INLINE float across_sum(V v) {
    float lane[16];
    v.store(lane);
    for (int n = 8; n; n /= 2)
        for (int l = 0; l < n; ++l) lane[l] += lane[l + n];
    return lane[0];
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
        const int64_t here = in.candidates - j < 16 ? in.candidates - j : 16;
        for (int64_t k = 0; k < in.width; ++k) {
            float* to = in.turned + k * in.across + j;
            for (int64_t l = 0; l < here; ++l) to[l] = in.candidate[(j + l) * in.stride + k];
            for (int64_t l = here; l < 16; ++l) to[l] = 0;
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

// Scores become their gradients; returns the question's loss.
double normalise(float* scores, int64_t across, float positive, float share, float* own) {
    V most = V::all(positive);
    for (int64_t j = 0; j < across; j += 16) most = larger(V::load(scores + j), most);
    float lane[16], highest = positive;
    most.store(lane);
    for (int l = 0; l < 16; ++l) highest = lane[l] > highest ? lane[l] : highest;
    const V peak = V::all(highest);
    V sum{};
    for (int64_t j = 0; j < across; j += 16) {
        const V likely = exponential(V::load(scores + j) - peak);
        likely.store(scores + j);
        sum += likely;
    }
    V first{};
    first.part[0][0] = positive - highest;
    const float mine = exponential(first).part[0][0], total = across_sum(sum) + mine;
    const float scale = share / total;
    *own = mine * scale - share;
    const V by = V::all(scale);
    for (int64_t j = 0; j < across; j += 16) (V::load(scores + j) * by).store(scores + j);
    return __builtin_log(static_cast<double>(total)) + static_cast<double>(highest) - static_cast<double>(positive);
}

}  // namespace

void softmax_block(SoftmaxBlock& in) {
    turn(in);
    product({in.query, in.stride, 1}, in.turned, in.across, in.width, in.questions, in.across, in.scores, in.across);
    hide(in);
    in.loss = 0;
    for (int64_t q = 0; q < in.questions; ++q) {
        const float positive = dot(in.query + q * in.stride, in.answer[q], in.width);
        in.loss += normalise(in.scores + q * in.across, in.across, positive, in.share, in.own + q);
    }
    product({in.scores, in.across, 1}, in.candidate, in.stride, in.candidates, in.questions, in.stride, in.to_query, in.stride);
    product({in.scores, 1, in.across}, in.query, in.stride, in.questions, in.candidates, in.stride, in.to_candidate, in.stride);
    for (int64_t q = 0; q < in.questions; ++q) {
        float* to = in.to_query + q * in.stride;
        const float own = in.own[q];
        for (int64_t j = 0; j < in.width; ++j) to[j] += own * in.answer[q][j];
    }
}

}  // namespace headrace::HEADRACE_LEVEL
