// Neighbor sampling where the rows of a graph lie in several parts: drawing from one, and putting a sample together.
#include <mutex>
#include <variant>

#include "bind_sample.h"
#include "draw_part.h"
#include "forked.h"
#include "hops.h"

namespace headrace {
namespace {

nb::tuple draw(const In1<int64_t>& indptr, const In& indices, const In& nodes, const In& rows, const In1<int64_t>& sizes,
               const In1<uint64_t>& keys, const std::shared_ptr<Pool>& pool, int64_t fanout, uint32_t hop, bool replace,
               int threads, int64_t num_nodes) {
    check_indptr(indptr);
    const int64_t count = length(rows), groups = length(sizes);
    check_vector(nodes, "nodes");
    if (length(nodes) != length(indptr) - 1) fail("nodes must have one entry per row: ", std::to_string(length(indptr) - 1));
    if (length(keys) != groups) fail("sizes and keys must have one entry per group");
    int64_t left = count;
    for (int64_t g = 0; g < groups; ++g) {
        if (sizes.data()[g] < 0 || sizes.data()[g] > left) fail("the sizes of groups must add up to the rows: ", std::to_string(count));
        left -= sizes.data()[g];
    }
    if (left) fail("the sizes of groups must add up to the rows: ", std::to_string(count));
    const PartRequest request{ids_of(rows, "rows"), count, sizes.data(), keys.data(), groups, fanout, hop, replace, threads};
    return with_ids(indices, "indices", [&](const auto* data) {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
        if (!is_int(nodes, sizeof(T) * 8)) fail("nodes must have the type of indices");
        const auto* of_rows = static_cast<const T*>(nodes.data());
        const GraphPart<T> part{indptr.data(), data, of_rows, length(indptr) - 1, length(indices), num_nodes};
        Array<int64_t> lengths(groups);
        Buffer drawn = [&] {
            nb::gil_scoped_release release;
            return draw_part(part, request, pool, lengths.data());
        }();
        int64_t size = 0;
        for (int64_t g = 0; g < groups; ++g) size += lengths[g];
        return nb::make_tuple(made<T>(std::move(drawn), size), made(std::move(lengths)));
    });
}

class PyHops {
public:
    PyHops(int64_t num_nodes, bool wide, bool hash) {
        check_count(num_nodes, "num_nodes");
        if (!wide && num_nodes > INT32_MAX) fail("more than 2^31 - 1 nodes need wide ids");
        if (wide)
            hops_ = make_hops<int64_t>(num_nodes, hash);
        else
            hops_ = make_hops<int32_t>(num_nodes, hash);
    }

    void begin(const In1<int64_t>& seeds, const std::shared_ptr<Pool>& pool) {
        with([&](auto& hops) { hops.begin(seeds.data(), length(seeds), pool); });
    }

    nb::object frontier() {
        return std::visit(
            [&](auto& hops) {
                using T = typename std::remove_reference_t<decltype(*hops)>::Id_;
                Array<T> nodes = [&] {
                    nb::gil_scoped_release release;
                    std::lock_guard lock(mutex_);
                    const auto [data, count] = hops->frontier();
                    Array<T> copied(count);
                    std::copy_n(data, count, copied.data());
                    return copied;
                }();
                return nb::cast(made(std::move(nodes)));
            },
            hops_);
    }

    void add(const In1<int64_t>& drawer, const std::vector<In>& drawn, int threads) {
        std::visit(
            [&](auto& hops) {
                using T = typename std::remove_reference_t<decltype(*hops)>::Id_;
                std::vector<DrawnRows<T>> rows;
                for (const In& each : drawn) {
                    check_vector(each, "drawn");
                    if (!is_int(each, sizeof(T) * 8)) fail("drawn must hold int", std::to_string(sizeof(T) * 8));
                    rows.push_back({static_cast<const T*>(each.data()), length(each)});
                }
                nb::gil_scoped_release release;
                std::lock_guard lock(mutex_);
                hops->add(drawer.data(), length(drawer), rows, threads);
            },
            hops_);
    }

    nb::tuple finish() {
        return std::visit(
            [&](auto& hops) {
                using T = typename std::remove_reference_t<decltype(*hops)>::Id_;
                SampleResult result = [&] {
                    nb::gil_scoped_release release;
                    std::lock_guard lock(mutex_);
                    return hops->finish();
                }();
                return sample_tuple<T>(std::move(result));
            },
            hops_);
    }

    int64_t workspace_bytes() {
        int64_t bytes = 0;
        with([&](auto& hops) { bytes = hops.workspace_bytes(); });
        return bytes;
    }

private:
    template <class Body>
    void with(Body body) {
        nb::gil_scoped_release release;
        std::lock_guard lock(mutex_);
        std::visit([&](auto& hops) { body(*hops); }, hops_);
    }

    ForkedMutex mutex_;
    std::variant<std::unique_ptr<Hops<int32_t>>, std::unique_ptr<Hops<int64_t>>> hops_;
};

}  // namespace

void bind_split(nb::module_& m) {
    m.def("draw_part", &draw, "indptr"_a.noconvert(), "indices"_a.noconvert(), "nodes"_a.noconvert(), "rows"_a.noconvert(),
          nb::kw_only(), "sizes"_a.noconvert(), "keys"_a.noconvert(), "pool"_a, "fanout"_a, "hop"_a, "replace"_a,
          "threads"_a, "num_nodes"_a);
    nb::class_<PyHops>(m, "Hops")
        .def(nb::init<int64_t, bool, bool>(), "num_nodes"_a, nb::kw_only(), "wide"_a, "hash"_a)
        .def("begin", &PyHops::begin, "seeds"_a.noconvert(), "pool"_a)
        .def("frontier", &PyHops::frontier)
        .def("add", &PyHops::add, "drawer"_a.noconvert(), "drawn"_a, nb::kw_only(), "threads"_a)
        .def("finish", &PyHops::finish)
        .def_prop_ro("workspace_bytes", &PyHops::workspace_bytes);
}

}  // namespace headrace
