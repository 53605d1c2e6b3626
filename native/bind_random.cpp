// Random streams: what they are for, their keys and their words.
#include <utility>

#include "bind.h"
#include "generate.h"
#include "philox.h"

namespace headrace {
namespace {

// The numbers are those of philox.h; tests/kernels/test_purpose.py fails if a name is missing.
constexpr std::pair<const char*, Purpose> kPurposes[] = {
    {"sample", Purpose::sample}, {"shuffle", Purpose::shuffle}, {"generate", Purpose::generate},
    {"dropout", Purpose::dropout}, {"attend", Purpose::attend}, {"labor", Purpose::labor},
    {"negative", Purpose::negative}, {"rounding", Purpose::rounding}, {"initial", Purpose::initial},
    {"residence", Purpose::residence}, {"node_order", Purpose::node_order}, {"community", Purpose::community},
    {"knowledge", Purpose::knowledge}, {"step", Purpose::step}, {"events", Purpose::events},
};

uint64_t key_of(uint64_t seed, uint32_t epoch, uint64_t batch, Purpose purpose) {
    const PhiloxKey key = stream_key(seed, epoch, batch, purpose);
    return uint64_t{key.k1} << 32 | key.k0;
}

Made<uint64_t> words(uint64_t seed, uint32_t epoch, Purpose purpose, int64_t count, int threads) {
    check_count(count, "count");
    return filled<uint64_t>(count, [&](uint64_t* out) { random_words(seed, epoch, purpose, count, out, threads); });
}

}  // namespace

void bind_random(nb::module_& m) {
    nb::enum_<Purpose> purpose(m, "Purpose", nb::is_arithmetic());
    for (const auto& [name, value] : kPurposes) purpose.value(name, value);
    m.def("stream_key", &key_of, "seed"_a, "epoch"_a, "batch"_a, "purpose"_a);
    m.def("random_words", &words, "seed"_a, "epoch"_a, "purpose"_a, "count"_a, "threads"_a);
}

}  // namespace headrace
