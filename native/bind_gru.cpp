// The gates of a GRU.
#include "bind.h"
#include "gru.h"

namespace headrace {
namespace {

template <class Any>
auto* gru_array(const Any& a, const char* name, const GruRows& rows, int64_t width) {
    if (element_of(a, name) != rows.element || a.ndim() != 2 || length(a) != rows.rows ||
        static_cast<int64_t>(a.shape(1)) != width)
        fail(name, " has the wrong shape or type for this memory");
    return a.data();
}

GruRows rows_of(const In& input, const In& hidden, const In& memory) {
    check_matrix(memory, "memory");
    GruRows rows;
    rows.element = element_of(memory, "memory");
    if (rows.element != Element::f32 && rows.element != Element::f64) fail("memory must be float32 or float64");
    rows.rows = length(memory);
    rows.width = static_cast<int64_t>(memory.shape(1));
    rows.input = gru_array(input, "input", rows, 3 * rows.width);
    rows.hidden = gru_array(hidden, "hidden", rows, 3 * rows.width);
    rows.memory = memory.data();
    return rows;
}

void gru_into(const In& input, const In& hidden, const In& memory, Out gates, Out out, int threads) {
    GruRows rows = rows_of(input, hidden, memory);
    rows.gates = gru_array(gates, "gates", rows, 3 * rows.width);
    rows.out = gru_array(out, "out", rows, rows.width);
    check_apart({{"gates", gates}, {"out", out}}, {{"input", input}, {"hidden", hidden}, {"memory", memory}});
    nb::gil_scoped_release release;
    gru(rows, threads);
}

void gru_gradient_into(const In& grad, const In& gates, const In& hidden, const In& memory, Out grad_input, Out grad_hidden,
                       std::optional<Out> grad_memory, int threads) {
    GruRows rows = rows_of(gates, hidden, memory);
    rows.gates = const_cast<void*>(gates.data());
    rows.grad = gru_array(grad, "grad", rows, rows.width);
    rows.grad_input = gru_array(grad_input, "grad_input", rows, 3 * rows.width);
    rows.grad_hidden = gru_array(grad_hidden, "grad_hidden", rows, 3 * rows.width);
    if (grad_memory) rows.grad_memory = gru_array(*grad_memory, "grad_memory", rows, rows.width);
    check_apart({{"grad_input", grad_input}, {"grad_hidden", grad_hidden}, {"grad_memory", grad_memory}},
                {{"grad", grad}, {"gates", gates}, {"hidden", hidden}, {"memory", memory}});
    nb::gil_scoped_release release;
    gru_gradient(rows, threads);
}

}  // namespace

void bind_gru(nb::module_& m) {
    m.def("gru", &gru_into, "input"_a.noconvert(), "hidden"_a.noconvert(), "memory"_a.noconvert(), "gates"_a.noconvert(),
          "out"_a.noconvert(), nb::kw_only(), "threads"_a);
    m.def("gru_gradient", &gru_gradient_into, "grad"_a.noconvert(), "gates"_a.noconvert(), "hidden"_a.noconvert(),
          "memory"_a.noconvert(), "grad_input"_a.noconvert(), "grad_hidden"_a.noconvert(), "grad_memory"_a.none().noconvert(),
          nb::kw_only(), "threads"_a);
}

}  // namespace headrace
