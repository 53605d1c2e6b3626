#include "column_tile.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace headrace {
namespace {

constexpr int64_t kUsual = int64_t{32} << 20;

constexpr int64_t kSlice = 128;      // bytes of a row summed at a time: two lines, since memory gives the second at little cost
constexpr double kBroad = 256;       // bytes of a row: at least two slices
constexpr double kOutgrown = 8;      // caches that the rows fill: below this most of what is read again is in the cache anyway,
constexpr double kHopeless = 16;     // and a slice beyond this is not there either
constexpr double kReads = 32;        // of each row: 12 did not repay copying it, 50 did

// What Linux knows of one cache of the first processor, its level or its size; 0 for what it does not.
int64_t described(int index, const char* what) {
    char path[80], text[32] = {};
    std::snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, what);
    std::FILE* file = std::fopen(path, "r");
    if (!file) return 0;
    const bool read = std::fgets(text, sizeof(text), file) != nullptr;
    std::fclose(file);
    long long number = 0;
    char unit = 0;
    if (!read || std::sscanf(text, "%lld%c", &number, &unit) < 1) return 0;
    return number << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

}  // namespace

int64_t last_level_cache() {
    static const int64_t size = [] {
        int64_t level = 0, bytes = 0;
        for (int i = 0; i < 8; ++i)
            if (const int64_t l = described(i, "level"); l > level) level = l, bytes = described(i, "size");
#ifdef _SC_LEVEL3_CACHE_SIZE
        if (bytes <= 0) bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
#endif
        return bytes > 0 ? bytes : kUsual;
    }();
    return size;
}

int64_t column_tile(int64_t rows, int64_t width, int64_t element_bytes, int64_t cache_bytes, double mean_degree) {
    const double row_bytes = static_cast<double>(width) * static_cast<double>(element_bytes);
    const double bytes = static_cast<double>(rows) * row_bytes, slice = static_cast<double>(rows) * kSlice;
    const double cache = static_cast<double>(cache_bytes);
    const int64_t rest = width * element_bytes % kSlice;  // a last slice that is all but empty costs as much as a full one
    const bool pays = row_bytes >= kBroad && (rest == 0 || 2 * rest >= kSlice) && bytes >= kOutgrown * cache && slice <= kHopeless * cache && mean_degree >= kReads;
    return pays ? std::max<int64_t>(kSlice / element_bytes, 1) : width;
}

}  // namespace headrace
