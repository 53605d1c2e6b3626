// Rows of files, and checksums of what is written to them.
#include "bind.h"
#include "checksum.h"
#include "read.h"

namespace headrace {
namespace {

void read_rows_into(int fd, int64_t offset, int64_t num_rows, int64_t bytes, const In& ids, Out out,
                    std::optional<In1<int64_t>> positions, int threads) {
    if (offset < 0 || num_rows < 0 || bytes < 0) fail("offset, num_rows and row_bytes must not be negative");
    int64_t end = 0;
    if (__builtin_mul_overflow(num_rows, bytes, &end) || __builtin_add_overflow(end, offset, &end))
        fail("a file has less than 2**63 bytes, not ", std::to_string(num_rows), " rows of ", std::to_string(bytes));
    if (out.ndim() < 1 || row_bytes(out) != bytes) fail("out must have rows of ", std::to_string(bytes), " bytes");
    if (positions && length(*positions) != length(ids)) fail("positions must have one element per id");
    check_apart({{"out", out}}, {{"ids", ids}, {"positions", positions}});
    with_ids(ids, "ids", [&](const auto* data) {
        nb::gil_scoped_release release;
        read_rows(FileRows{fd, offset, num_rows, bytes}, data, length(ids), positions ? positions->data() : nullptr,
                  length(out), static_cast<char*>(out.data()), threads);
    });
}

void update(Checksum& checksum, const In1<uint8_t>& data) {
    nb::gil_scoped_release release;
    checksum.update(data.data(), data.shape(0));
}

}  // namespace

void bind_read(nb::module_& m) {
    nb::class_<Checksum>(m, "Checksum")
        .def(nb::init<>())
        .def("update", &update, "data"_a.noconvert())
        .def("digest", &Checksum::digest);
    m.def("read_rows", &read_rows_into, "fd"_a, "offset"_a, "num_rows"_a, "row_bytes"_a, "ids"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "positions"_a.none().noconvert(), "threads"_a);
}

}  // namespace headrace
