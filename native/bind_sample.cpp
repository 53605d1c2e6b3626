// Neighbor sampling.
#include <variant>

#include "bind_sample.h"
#include "weigh.h"

namespace headrace {
namespace {

// An array beside `indices`, or null.
template <class T>
const T* beside(const std::optional<In1<T>>& a, int64_t edges, const char* name) {
    if (a && length(*a) != edges) fail(name, " must have one entry per edge: ", std::to_string(edges));
    return a ? a->data() : nullptr;
}

class PySampler {
public:
    PySampler(In1<int64_t> indptr, In indices, std::vector<int64_t> fanouts, bool replace, bool hash, bool disjoint,
              std::optional<In1<float>> weight, std::optional<In1<double>> cumulative, std::optional<In> time,
              std::optional<In> since, bool last, bool inclusive, bool edge_time, bool labor, bool layer_dependency,
              uint32_t batch_dependency)
        : indptr_(std::move(indptr)), indices_(std::move(indices)), weight_(std::move(weight)),
          cumulative_(std::move(cumulative)), time_(std::move(time)), since_(std::move(since)) {
        check_indptr(indptr_);
        SampleOptions options{std::move(fanouts), replace, hash, disjoint, last, inclusive, edge_time, labor,
                              layer_dependency, batch_dependency};
        if (labor && (replace || disjoint)) fail("LABOR draws neither with replacement nor disjoint trees");
        if (last && replace) fail("the last of a row are taken once each: `last` goes with no replacement");
        if (time_ && !disjoint) fail("times need disjoint trees");
        if (!time_ && (since_ || edge_time)) fail("`since` and `edge_time` are for graphs with times");
        if (since_ && cumulative_) fail("sums of weights are of whole rows: they do not go with `since`");
        if (weight_ && replace && !cumulative_) fail("weighted draws with replacement need the sums of the weights");
        with_ids(indices_, "indices", [&](const auto* data) {
            using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
            const int64_t edges = length(indices_);
            SampleGraph<T> graph{indptr_.data(), data, length(indptr_) - 1, edges};
            graph.weight = beside(weight_, edges, "weight");
            graph.cumulative = beside(cumulative_, edges, "cumulative");
            if (time_) {
                graph.real_time = check_time(*time_, edges);
                graph.time = time_->data();
                if (since_) {
                    if (check_time(*since_, 1) != graph.real_time) fail("since must have the type of the graph's times");
                    graph.since = since_->data();
                }
            }
            sampler_ = make_sampler<T>(graph, std::move(options));
        });
    }

    nb::tuple sample(const In1<int64_t>& seeds, const std::shared_ptr<Pool>& pool, uint64_t seed, uint32_t epoch,
                     uint64_t batch, bool positions, int threads, const std::optional<In>& time) {
        if (time.has_value() != time_.has_value()) fail("seeds have times exactly where the graph has them");
        if (time && check_time(*time, length(seeds)) != is_real(*time_)) fail("time must have the type of the graph's times");
        const SampleRequest request{seeds.data(), length(seeds), time ? time->data() : nullptr, seed, epoch, batch,
                                    positions, threads};
        return std::visit(
            [&](auto& sampler) {
                using T = typename std::remove_reference_t<decltype(*sampler)>::Id_;
                SampleResult r = [&] {
                    nb::gil_scoped_release release;
                    return sampler->sample(request, pool);
                }();
                return sample_tuple<T>(std::move(r));
            },
            sampler_);
    }

    int64_t workspace_bytes() const {
        return std::visit([](const auto& s) { return s->workspace_bytes(); }, sampler_);
    }

private:
    static bool is_real(const In& time) { return time.dtype() == nb::dtype<double>(); }
    // Whether times are float64; they may be int64 too.
    static bool check_time(const In& time, int64_t size) {
        check_vector(time, "time");
        if (!is_real(time) && !is_int(time, 64)) fail("time must be int64 or float64");
        if (length(time) != size) fail("time must have ", std::to_string(size), " entries");
        return is_real(time);
    }
    In1<int64_t> indptr_;
    In indices_;
    std::optional<In1<float>> weight_;
    std::optional<In1<double>> cumulative_;
    std::optional<In> time_, since_;
    std::variant<std::unique_ptr<Sampler<int32_t>>, std::unique_ptr<Sampler<int64_t>>> sampler_;
};

}  // namespace

void bind_sample(nb::module_& m) {
    nb::class_<PySampler>(m, "Sampler")
        .def(nb::init<In1<int64_t>, In, std::vector<int64_t>, bool, bool, bool, std::optional<In1<float>>,
                      std::optional<In1<double>>, std::optional<In>, std::optional<In>, bool, bool, bool, bool, bool,
                      uint32_t>(),
             "indptr"_a.noconvert(), "indices"_a.noconvert(), "fanouts"_a, nb::kw_only(), "replace"_a, "hash"_a,
             "disjoint"_a = false, "weight"_a.noconvert() = nb::none(), "cumulative"_a.noconvert() = nb::none(),
             "time"_a.noconvert() = nb::none(), "since"_a.noconvert() = nb::none(), "last"_a = false, "inclusive"_a = false,
             "edge_time"_a = false, "labor"_a = false, "layer_dependency"_a = false, "batch_dependency"_a = 1)
        .def("sample", &PySampler::sample, "seeds"_a.noconvert(), "pool"_a, nb::kw_only(), "seed"_a, "epoch"_a,
             "batch"_a, "positions"_a, "threads"_a, "time"_a.noconvert() = nb::none())
        .def_prop_ro("workspace_bytes", &PySampler::workspace_bytes);
    m.def(
        "cumulative_weights",
        [](const In1<int64_t>& indptr, const In1<float>& weight, int threads) {
            check_indptr(indptr);
            return filled<double>(length(weight), [&](double* out) {
                cumulative_weights(indptr.data(), length(indptr) - 1, weight.data(), length(weight), out, threads);
            });
        },
        "indptr"_a.noconvert(), "weight"_a.noconvert(), "threads"_a);
}

}  // namespace headrace
