// Attention over the neighbors of a CSR, fused: scores, softmax, dropout and weighted sum in one pass, with nothing kept per
// entry (FlashAttention's idea, on sparse rows). GAT (Velickovic et al. 2018) scores an entry by leaky(source + target), GATv2
// (Brody et al. 2022; "pairs") by <attention, leaky(x + target)>. No atomics: every output row has one writer and adds its entries
// in order, so the result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "vector.h"

namespace headrace {

// out and peak of every row. An empty row gives 0.
void attend(const Attention& in, int threads);

// The gradients asked for (pointers that are not null), of `graph` and, for x and source, of its transpose `reverse`: indptr,
// rows, count, indices, position, columns and own differ. `attention`, in the type of sums, is null or gets the pairs' attention's.
void attend_gradient(const Attention& graph, const Attention& reverse, void* attention, int threads);

}  // namespace headrace
