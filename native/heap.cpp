#include "heap.h"

#include <cstdlib>  // defines __GLIBC__ where it is

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace headrace {

void keep_freed_memory([[maybe_unused]] bool keep) {
#if defined(__GLIBC__)
    constexpr int kDefaultMaps = 65536, kDefaultTrim = 128 << 10;  // mallopt(3)
    mallopt(M_MMAP_MAX, keep ? 0 : kDefaultMaps);
    mallopt(M_TRIM_THRESHOLD, keep ? 0x7FFFFFFF : kDefaultTrim);
    if (!keep) malloc_trim(0);
#endif
}

void share_one_heap() {
#if defined(__GLIBC__)
    mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace headrace
