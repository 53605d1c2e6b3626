// Random streams: what they are for, their keys and their words.
#include "bind.h"
#include "generate.h"
#include "philox.h"

namespace headrace {
namespace {

// The numbers are those of philox.h; tests/kernels/test_purpose.py looks that no name is missing.
void bind_purpose(nb::module_& m) {
    nb::enum_<Purpose>(m, "Purpose", nb::is_arithmetic())
        .value("sample", Purpose::sample)
        .value("shuffle", Purpose::shuffle)
        .value("generate", Purpose::generate)
        .value("dropout", Purpose::dropout)
        .value("attend", Purpose::attend)
        .value("labor", Purpose::labor)
        .value("negative", Purpose::negative)
        .value("rounding", Purpose::rounding)
        .value("initial", Purpose::initial)
        .value("residence", Purpose::residence)
        .value("node_order", Purpose::node_order)
        .value("community", Purpose::community)
        .value("knowledge", Purpose::knowledge);
}

uint64_t key_of(uint64_t seed, uint32_t epoch, uint64_t batch, Purpose purpose) {
    const PhiloxKey key = stream_key(seed, epoch, batch, purpose);
    return uint64_t{key.k1} << 32 | key.k0;
}

Made<uint64_t> words(uint64_t seed, uint32_t epoch, Purpose purpose, int64_t count, int threads) {
    if (count < 0) fail("count must not be negative");
    Array<uint64_t> out(count);
    {
        nb::gil_scoped_release release;
        random_words(seed, epoch, purpose, count, out.data(), threads);
    }
    return made(std::move(out));
}

}  // namespace

void bind_random(nb::module_& m) {
    bind_purpose(m);
    m.def("stream_key", &key_of, "seed"_a, "epoch"_a, "batch"_a, "purpose"_a);
    m.def("random_words", &words, "seed"_a, "epoch"_a, "purpose"_a, "count"_a, "threads"_a);
}

}  // namespace headrace
