// Neighbour sampling.
#include <variant>

#include "bind.h"
#include "philox.h"
#include "sample.h"

namespace headrace {
namespace {

class PySampler {
public:
    PySampler(In1<int64_t> indptr, In indices, std::vector<int64_t> fanouts, bool replace, bool hash)
        : indptr_(std::move(indptr)), indices_(std::move(indices)) {
        check_indptr(indptr_);
        with_ids(indices_, "indices", [&](const auto* data) {
            using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
            sampler_.template emplace<std::unique_ptr<Sampler<T>>>(
                std::make_unique<Sampler<T>>(indptr_.data(), data, length(indptr_) - 1, length(indices_),
                                             std::move(fanouts), replace, hash));
        });
    }

    nb::tuple sample(const In1<int64_t>& seeds, const std::shared_ptr<Pool>& pool, uint64_t seed, uint32_t epoch,
                     uint64_t batch, bool positions, int threads) {
        const SampleRequest request{seeds.data(), length(seeds), seed, epoch, batch, positions, threads};
        return std::visit(
            [&](auto& sampler) {
                using T = typename std::remove_reference_t<decltype(*sampler)>::Id_;
                SampleResult r = [&] {
                    nb::gil_scoped_release release;
                    return sampler->sample(request, pool);
                }();
                int64_t nodes = 0, edges = 0, rows = 0;
                for (size_t h = 0; h < r.node_counts.size(); ++h) {
                    nodes += r.node_counts[h];
                    if (h + 1 < r.node_counts.size()) rows = nodes;
                }
                for (int64_t e : r.edge_counts) edges += e;
                nb::object where = nb::none();
                if (positions) where = nb::cast(made<int64_t>(std::move(r.positions), edges));
                return nb::make_tuple(made<T>(std::move(r.nodes), nodes), made<int64_t>(std::move(r.indptr), rows + 1),
                                      made<int32_t>(std::move(r.indices), edges), where, r.node_counts, r.edge_counts);
            },
            sampler_);
    }

    int64_t workspace_bytes() const {
        return std::visit([](const auto& s) { return s->workspace_bytes(); }, sampler_);
    }

private:
    In1<int64_t> indptr_;
    In indices_;
    std::variant<std::unique_ptr<Sampler<int32_t>>, std::unique_ptr<Sampler<int64_t>>> sampler_;
};

}  // namespace

void bind_sample(nb::module_& m) {
    m.def("stream_key", [](uint64_t seed, uint32_t epoch, uint64_t batch, uint32_t purpose) {
        const PhiloxKey key = stream_key(seed, epoch, batch, static_cast<Purpose>(purpose));
        return uint64_t{key.k1} << 32 | key.k0;
    }, "seed"_a, "epoch"_a, "batch"_a, "purpose"_a);
    nb::class_<PySampler>(m, "Sampler")
        .def(nb::init<In1<int64_t>, In, std::vector<int64_t>, bool, bool>(), "indptr"_a.noconvert(),
             "indices"_a.noconvert(), "fanouts"_a, nb::kw_only(), "replace"_a, "hash"_a)
        .def("sample", &PySampler::sample, "seeds"_a.noconvert(), "pool"_a, nb::kw_only(), "seed"_a, "epoch"_a,
             "batch"_a, "positions"_a, "threads"_a)
        .def_prop_ro("workspace_bytes", &PySampler::workspace_bytes);
}

}  // namespace headrace
