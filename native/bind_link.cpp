// Link prediction.
#include "bind.h"
#include "count_scores.h"
#include "link_step.h"

namespace headrace {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using Chunks = nb::ndarray<const float, nb::ndim<3>, nb::device::cpu, nb::c_contig>;
using ChunksOut = nb::ndarray<float, nb::ndim<3>, nb::device::cpu, nb::c_contig>;

template <class A, class B>
void check_same(const A& a, const B& b, const char* what) {
    bool same = a.ndim() == b.ndim();
    for (size_t i = 0; same && i < a.ndim(); ++i) same = a.shape(i) == b.shape(i);
    if (!same) fail(what, " must have one shape");
}

double softmax_of(Chunks query, Chunks answer, Chunks candidates, std::optional<In1<int64_t>> hidden, ChunksOut to_query,
                  ChunksOut to_answer, ChunksOut to_candidates, int threads) {
    check_same(query, answer, "query and answer");
    check_same(query, to_query, "query and its gradient");
    check_same(answer, to_answer, "answer and its gradient");
    check_same(candidates, to_candidates, "candidates and their gradient");
    if (query.shape(0) != candidates.shape(0) || query.shape(2) != candidates.shape(2))
        fail("query and candidates must have as many chunks and rows of one width");
    if (query.shape(2) == 0) fail("query and candidates must have at least one column");
    check_apart({{"to_query", to_query}, {"to_answer", to_answer}, {"to_candidates", to_candidates}},
                {{"query", query}, {"answer", answer}, {"candidates", candidates}, {"hidden", hidden}});
    SharedSoftmax in;
    in.chunks = length(query);
    in.questions = static_cast<int64_t>(query.shape(1));
    in.width = static_cast<int64_t>(query.shape(2));
    in.candidates = static_cast<int64_t>(candidates.shape(1));
    in.query = query.data();
    in.answer = answer.data();
    in.candidate = candidates.data();
    if (hidden) in.hidden = hidden->data();
    in.hidden_count = hidden ? length(*hidden) : 0;
    in.to_query = to_query.data();
    in.to_answer = to_answer.data();
    in.to_candidate = to_candidates.data();
    nb::gil_scoped_release release;
    return shared_softmax(in, threads);
}

Optimizer optimizer_of(const std::string& name) {
    if (name == "sgd") return Optimizer::sgd;
    if (name == "adagrad") return Optimizer::adagrad;
    if (name == "row_adagrad") return Optimizer::row_adagrad;
    fail("optimizer must be row_adagrad, adagrad or sgd, not ", name);
}

void check_state(const RowUpdate& update, int64_t rows, int64_t width, const Floats& state, const char* name) {
    if (length(state) != rows || static_cast<int64_t>(state.shape(1)) != update.state_width(width))
        fail(name, " must have ", std::to_string(rows), " rows of ", std::to_string(update.state_width(width)));
}

void updates_into(const std::string& optimizer, Floats grad, Floats state, FloatsOut delta, FloatsOut squares, double lr, double eps,
                  int threads) {
    const RowUpdate update{optimizer_of(optimizer), static_cast<float>(lr), static_cast<float>(eps)};
    const int64_t width = static_cast<int64_t>(grad.shape(1));
    check_state(update, length(grad), width, state, "state");
    check_same(grad, delta, "grad and delta");
    check_same(state, squares, "state and squares");
    check_apart({{"delta", delta}, {"squares", squares}}, {{"grad", grad}, {"state", state}});
    nb::gil_scoped_release release;
    row_updates(update, grad.data(), state.data(), length(grad), width, delta.data(), squares.data(), threads);
}

Joined joined_of(const std::string& name) {
    if (name == "dot") return Joined::dot;
    if (name == "distmult") return Joined::distmult;
    if (name == "complex") return Joined::complex;
    fail("decoder must be dot, distmult or complex, not ", name);
}

double step_of(LinkWorkspace& workspace, const std::string& decoder, FloatsOut rows, FloatsOut state,
               std::optional<In1<int64_t>> ids, In1<int64_t> place, In1<int64_t> relation, FloatsOut parameters,
               FloatsOut parameter_state, std::optional<In1<int64_t>> hidden, std::optional<FloatsOut> delta,
               std::optional<FloatsOut> delta_state, int64_t chunks, bool reciprocal, const std::string& optimizer,
               const std::string& relation_optimizer, double lr, double eps, int threads) {
    LinkStep in;
    in.kind = joined_of(decoder);
    in.reciprocal = reciprocal;
    in.edges = length(relation);
    in.chunks = chunks;
    in.width = static_cast<int64_t>(rows.shape(1));
    in.table_rows = length(rows);
    in.row_count = ids ? length(*ids) : in.table_rows;
    if (ids) in.ids = ids->data();
    if (in.width < 1) fail("rows must have at least one column");
    if (chunks < 1 || chunks > std::max<int64_t>(in.edges, 1) || in.edges % chunks) fail("chunks must divide the number of edges");
    const int64_t drawn = length(place) - 2 * in.edges;
    if (drawn < 0 || drawn % chunks) fail("place must name the heads, the tails and as many negatives for every chunk");
    in.negatives = drawn / chunks;
    in.relations = length(parameters) / (reciprocal ? 2 : 1);
    const bool related = in.kind != Joined::dot;
    if (related && static_cast<int64_t>(parameters.shape(1)) != in.width) fail("parameters must be as wide as rows");
    if (in.kind == Joined::complex && in.width % 2) fail("complex rows must have an even width");
    in.update = {optimizer_of(optimizer), static_cast<float>(lr), static_cast<float>(eps)};
    in.relation_update = {optimizer_of(relation_optimizer), static_cast<float>(lr), static_cast<float>(eps)};
    if (in.relation_update.optimizer == Optimizer::row_adagrad) fail("relations are updated by adagrad or sgd");
    check_state(in.update, in.table_rows, in.width, Floats(state), "state");
    if (related) check_state(in.relation_update, length(parameters), in.width, Floats(parameter_state), "parameter_state");
    if (delta.has_value() != delta_state.has_value()) fail("delta and delta_state must be given together");
    if (delta) {
        if (length(*delta) != in.row_count || delta->shape(1) != rows.shape(1)) fail("delta must have a row for each that is used");
        if (length(*delta_state) != in.row_count || delta_state->shape(1) != state.shape(1))
            fail("delta_state must have a row for each that is used");
        in.delta = delta->data();
        in.delta_state = delta_state->data();
    }
    check_apart({{"rows", rows}, {"state", state}, {"parameters", parameters}, {"parameter_state", parameter_state},
                 {"delta", delta}, {"delta_state", delta_state}},
                {{"ids", ids}, {"place", place}, {"relation", relation}, {"hidden", hidden}});
    in.rows = rows.data();
    in.state = state.data();
    in.place = place.data();
    in.relation = relation.data();
    if (hidden) in.hidden = hidden->data();
    in.hidden_count = hidden ? length(*hidden) : 0;
    in.parameters = parameters.data();
    in.parameter_state = parameter_state.data();
    nb::gil_scoped_release release;
    return workspace.step(in, threads);
}

void count_into(Floats scores, const In1<float>& low, const In1<float>& high, Out1<int64_t> above, Out1<int64_t> level,
                int threads) {
    const int64_t rows = length(low);
    if (static_cast<int64_t>(scores.shape(0)) != rows || length(high) != rows || length(above) != rows || length(level) != rows)
        fail("scores, low, high, above and level must have as many rows");
    nb::gil_scoped_release release;
    count_scores(scores.data(), rows, static_cast<int64_t>(scores.shape(1)), low.data(), high.data(), above.data(), level.data(),
                 threads);
}

}  // namespace

void bind_link(nb::module_& m) {
    m.def("count_scores", &count_into, "scores"_a.noconvert(), "low"_a.noconvert(), "high"_a.noconvert(), "above"_a.noconvert(),
          "level"_a.noconvert(), nb::kw_only(), "threads"_a);
    m.def("shared_softmax", &softmax_of, "query"_a.noconvert(), "answer"_a.noconvert(), "candidates"_a.noconvert(), nb::kw_only(),
          "hidden"_a.none().noconvert(), "to_query"_a.noconvert(), "to_answer"_a.noconvert(), "to_candidates"_a.noconvert(),
          "threads"_a);
    m.def("row_updates", &updates_into, "optimizer"_a, "grad"_a.noconvert(), "state"_a.noconvert(), "delta"_a.noconvert(),
          "squares"_a.noconvert(), nb::kw_only(), "lr"_a, "eps"_a, "threads"_a);
    nb::class_<LinkWorkspace>(m, "LinkWorkspace")
        .def(nb::init<>())
        .def("step", &step_of, "decoder"_a, nb::kw_only(), "rows"_a.noconvert(), "state"_a.noconvert(),
             "ids"_a.none().noconvert(), "place"_a.noconvert(), "relation"_a.noconvert(), "parameters"_a.noconvert(),
             "parameter_state"_a.noconvert(), "hidden"_a.none().noconvert(), "delta"_a.none().noconvert(),
             "delta_state"_a.none().noconvert(), "chunks"_a, "reciprocal"_a, "optimizer"_a, "relation_optimizer"_a,
             "lr"_a, "eps"_a, "threads"_a);
}

}  // namespace headrace
