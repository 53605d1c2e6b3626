#include <cstdlib>
#include <cstring>

#include "vector.h"

namespace headrace {

namespace baseline {
extern const VectorTable table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const VectorTable table;
}
namespace avx512 {
extern const VectorTable table;
}
#endif

const VectorTable& vector_table() {
    // HEADRACE_LEVEL=baseline or avx2 holds it back, to test those on a newer machine. Results are the same.
    static const VectorTable* const chosen = []() -> const VectorTable* {
#if defined(__x86_64__)
        const char* limit = std::getenv("HEADRACE_LEVEL");
        const auto allowed = [&](const char* level) {
            return !limit || std::strcmp(limit, level) == 0 || std::strcmp(limit, "avx512") == 0;
        };
        __builtin_cpu_init();
        if (allowed("avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512cd"))
            return &avx512::table;
        if (allowed("avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
            return &avx2::table;
#endif
        return &baseline::table;
    }();
    return *chosen;
}

}  // namespace headrace
