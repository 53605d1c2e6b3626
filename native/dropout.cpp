#include "dropout.h"

#include "common.h"

namespace headrace {

void dropout(Element element, const DropoutJob& job, const void* gate, int64_t count, int threads) {
    constexpr int64_t kPiece = 1 << 14;  // a multiple of what is drawn at a time
    const VectorTable& vector = vector_table();
    const int64_t pieces = (count + kPiece - 1) / kPiece;
    threads = useful_threads(threads, pieces, 2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < pieces; ++i) vector.dropout(element, job, gate, i * kPiece, std::min(count, (i + 1) * kPiece));
}

}  // namespace headrace
