// The gates of a GRU (Cho et al. 2014, as torch's GRUCell has it) once its two products are there: one pass in place of a dozen.
//   reset = sigmoid(input + hidden), update = sigmoid(input + hidden), new = tanh(input + reset * hidden),
//   out = new + update * (memory - new).
#pragma once

#include "vector.h"

namespace headrace {

void gru(const GruRows& in, int threads);
void gru_gradient(const GruRows& in, int threads);

}  // namespace headrace
