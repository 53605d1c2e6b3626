// What optimizers add to rows and to their state, given gradients.
#pragma once

#include <cstdint>

#include "vector.h"

namespace headrace {

enum class Optimizer : int32_t { sgd, adagrad, row_adagrad };

struct RowUpdate {
    Optimizer optimizer = Optimizer::row_adagrad;
    float lr = 0, eps = 0;
    int64_t state_width(int64_t width) const {
        return optimizer == Optimizer::sgd ? 0 : optimizer == Optimizer::adagrad ? width : 1;
    }
    // s += g^2, of a row its mean; the row += -lr g / (sqrt(s) + eps).
    void row(const VectorTable& vector, const float* grad, const float* state, int64_t width, float* delta, float* squares) const {
        if (optimizer == Optimizer::sgd) {
            for (int64_t j = 0; j < width; ++j) delta[j] = -lr * grad[j];
            return;
        }
        vector.adagrad(grad, state, optimizer == Optimizer::row_adagrad, lr, eps, width, delta, squares);
    }
};

void row_updates(const RowUpdate& update, const float* grad, const float* state, int64_t rows, int64_t width, float* delta,
                 float* squares, int threads);

}  // namespace headrace
