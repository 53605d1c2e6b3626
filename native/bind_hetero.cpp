// Neighbor sampling over node and edge types.
#include "bind.h"
#include "hetero.h"

namespace headrace {
namespace {

class PyHeteroSampler {
public:
    PyHeteroSampler(std::vector<int64_t> num_nodes, std::vector<In1<int64_t>> indptr, std::vector<In> indices,
                    const std::vector<int64_t>& source, const std::vector<int64_t>& target,
                    const std::vector<std::vector<int64_t>>& fanouts, int64_t hops, bool replace, std::vector<bool> hash)
        : indptr_(std::move(indptr)), indices_(std::move(indices)) {
        const size_t count = indptr_.size();
        if (indices_.size() != count || source.size() != count || target.size() != count || fanouts.size() != count)
            fail("indptr, indices, source, target and fanouts must have one entry per edge type");
        check_count(hops, "hops");
        for (const int64_t nodes : num_nodes) check_count(nodes, "num_nodes");
        std::vector<Relation> relations;
        for (size_t r = 0; r < count; ++r) {
            check_indptr(indptr_[r]);
            relations.push_back({indptr_[r].data(), ids_of(indices_[r], "indices"), length(indptr_[r]) - 1,
                                 length(indices_[r]), source[r], target[r], fanouts[r]});
        }
        sampler_ = std::make_unique<HeteroSampler>(std::move(num_nodes), std::move(relations), static_cast<size_t>(hops),
                                                   replace, std::move(hash));
    }

    nb::tuple sample(const std::vector<In1<int64_t>>& seeds, const std::shared_ptr<Pool>& pool, uint64_t seed,
                     uint32_t epoch, uint64_t batch, bool positions, int threads) {
        if (seeds.size() != sampler_->num_types()) fail("seeds must have one array per node type");
        HeteroRequest request{{}, {}, seed, epoch, batch, threads};
        for (const auto& ids : seeds) {
            request.seeds.push_back(ids.data());
            request.num_seeds.push_back(length(ids));
        }
        HeteroResult r = [&] {
            nb::gil_scoped_release release;
            return sampler_->sample(request, pool);
        }();
        nb::list nodes, indptr, indices, where;
        for (size_t t = 0; t < r.nodes.size(); ++t) nodes.append(made<int64_t>(std::move(r.nodes[t]), sum(r.node_counts[t])));
        for (size_t e = 0; e < r.indices.size(); ++e) {
            const auto& counts = r.node_counts[static_cast<size_t>(sampler_->target(e))];
            const int64_t rows = sum(counts) - counts.back(), edges = sum(r.edge_counts[e]);
            indptr.append(made<int64_t>(std::move(r.indptr[e]), r.edge_counts[e].empty() ? 1 : rows + 1));
            indices.append(made<int32_t>(std::move(r.indices[e]), edges));
            if (positions) where.append(made<int64_t>(std::move(r.positions[e]), edges));
        }
        return nb::make_tuple(nodes, indptr, indices, positions ? nb::object(where) : nb::none(), r.node_counts,
                              r.edge_counts);
    }

    int64_t workspace_bytes() const { return sampler_->workspace_bytes(); }

private:
    static int64_t sum(const std::vector<int64_t>& counts) {
        int64_t total = 0;
        for (int64_t n : counts) total += n;
        return total;
    }
    std::vector<In1<int64_t>> indptr_;
    std::vector<In> indices_;
    std::unique_ptr<HeteroSampler> sampler_;
};

}  // namespace

void bind_hetero(nb::module_& m) {
    nb::class_<PyHeteroSampler>(m, "HeteroSampler")
        .def(nb::init<std::vector<int64_t>, std::vector<In1<int64_t>>, std::vector<In>, std::vector<int64_t>,
                      std::vector<int64_t>, std::vector<std::vector<int64_t>>, int64_t, bool, std::vector<bool>>(),
             "num_nodes"_a, "indptr"_a, "indices"_a, nb::kw_only(), "source"_a, "target"_a, "fanouts"_a, "hops"_a,
             "replace"_a, "hash"_a)
        .def("sample", &PyHeteroSampler::sample, "seeds"_a, "pool"_a, nb::kw_only(), "seed"_a, "epoch"_a, "batch"_a,
             "positions"_a, "threads"_a)
        .def_prop_ro("workspace_bytes", &PyHeteroSampler::workspace_bytes);
}

}  // namespace headrace
