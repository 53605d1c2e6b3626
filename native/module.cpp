// The Python module: each file bind_*.cpp adds its part.
#include <stdexcept>

#include "bind.h"

NB_MODULE(_native, m) {
    namespace nb = nanobind;
    m.doc() = "CPU kernels of Headrace. Every function releases the GIL and takes the number of threads.";
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::length_error&) {  // a vector of more elements than there are addresses
            PyErr_SetNone(PyExc_MemoryError);
        }
    });
    m.attr("level") = headrace::vector_table().name;
    headrace::bind_random(m);
    headrace::bind_graph(m);
    headrace::bind_order(m);
    headrace::bind_rows(m);
    headrace::bind_attend(m);
    headrace::bind_attend_time(m);
    headrace::bind_gru(m);
    headrace::bind_sample(m);
    headrace::bind_split(m);
    headrace::bind_hetero(m);
    headrace::bind_negative(m);
    headrace::bind_cache(m);
    headrace::bind_limits(m);
    headrace::bind_read(m);
    headrace::bind_trained(m);
    headrace::bind_link(m);
}
