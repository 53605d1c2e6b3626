// Dropout whose mask is a function of a seed and an element's position: nothing is stored for the gradient, and threads
// change nothing. A slice of a whole draws the whole's mask.
#pragma once

#include <cstdint>

#include "vector.h"

namespace headrace {

// out[i] = x[i] (or max(x[i], 0)) * scale, or 0 where element i is dropped. With `gate`: x[i] * scale where gate[i] > 0, else 0.
void dropout(Element element, const DropoutJob& job, const void* gate, int64_t count, int threads);

}  // namespace headrace
