// What the bindings of samplers share.
#pragma once

#include <utility>

#include "bind.h"
#include "sample.h"

namespace headrace {

// (nodes, indptr, indices, positions, trees, node counts, edge counts), the arrays over the sample's own buffers.
template <class Id>
nb::tuple sample_tuple(SampleResult r) {
    int64_t nodes = 0, edges = 0, rows = 0;
    for (size_t h = 0; h < r.node_counts.size(); ++h) {
        nodes += r.node_counts[h];
        if (h + 1 < r.node_counts.size()) rows = nodes;
    }
    for (int64_t e : r.edge_counts) edges += e;
    nb::object positions = nb::none(), trees = nb::none();
    if (r.positions.template as<void>()) positions = nb::cast(made<int64_t>(std::move(r.positions), edges));
    if (r.trees.template as<void>()) trees = nb::cast(made<int32_t>(std::move(r.trees), nodes));
    return nb::make_tuple(made<Id>(std::move(r.nodes), nodes), made<int64_t>(std::move(r.indptr), rows + 1),
                          made<int32_t>(std::move(r.indices), edges), positions, trees, r.node_counts, r.edge_counts);
}

}  // namespace headrace
