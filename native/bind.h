// What the files that bind kernels to Python share: arrays come in by DLPack or the buffer protocol without copies, are
// checked, and the GIL is released before any work.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>

#include "common.h"
#include "memory.h"
#include "pool.h"
#include "vector.h"

namespace headrace {

namespace nb = nanobind;
using namespace nb::literals;

void bind_random(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_order(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_attend(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_hetero(nb::module_& m);
void bind_negative(nb::module_& m);
void bind_cache(nb::module_& m);
void bind_limits(nb::module_& m);
void bind_read(nb::module_& m);
void bind_trained(nb::module_& m);
void bind_link(nb::module_& m);

using In = nb::ndarray<nb::ro, nb::device::cpu, nb::c_contig>;
using Out = nb::ndarray<nb::device::cpu, nb::c_contig>;
template <class T>
using In1 = nb::ndarray<const T, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
template <class T>
using Out1 = nb::ndarray<T, nb::ndim<1>, nb::device::cpu, nb::c_contig>;
template <class T>
using Made = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class... Parts>
[[noreturn]] void fail(Parts... parts) {
    std::string text;
    ((text += parts), ...);
    throw nb::value_error(text.c_str());
}

template <class Any>
bool is_int(const Any& a, int bits) {
    return a.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) && a.dtype().bits == bits;
}

template <class Any>
int64_t length(const Any& a) {
    return static_cast<int64_t>(a.shape(0));
}

inline void check_vector(const In& a, const char* name) {
    if (a.ndim() != 1) fail(name, " must have one dimension, not ", std::to_string(a.ndim()));
}

// Calls body with a typed pointer to ids, which may be int32 or int64.
template <class Body>
auto with_ids(const In& a, const char* name, Body body) {
    check_vector(a, name);
    if (is_int(a, 32)) return body(static_cast<const int32_t*>(a.data()));
    if (is_int(a, 64)) return body(static_cast<const int64_t*>(a.data()));
    fail(name, " must be int32 or int64");
}

inline Ids ids_of(const std::optional<In>& a, const char* name) {
    if (!a) return {};
    return with_ids(*a, name, [&](const auto* data) { return Ids{data, sizeof(*data) == 8}; });
}

template <class T>
Made<T> made(Array<T> array) {
    auto* held = new Array<T>(std::move(array));
    nb::capsule owner(held, [](void* p) noexcept { delete static_cast<Array<T>*>(p); });
    return Made<T>(held->data(), {static_cast<size_t>(held->size())}, owner);
}

// An array of `count` elements that `fill` writes, without the GIL.
template <class T, class Fill>
Made<T> filled(int64_t count, Fill fill) {
    Array<T> out(count);
    {
        nb::gil_scoped_release release;
        fill(out.data());
    }
    return made(std::move(out));
}

struct Held {  // a pool buffer on its way out to Python: returned when the last array over it dies
    std::shared_ptr<Pool> pool;
    void* memory;
};

template <class T>
Made<T> made(Buffer buffer, int64_t size) {
    auto* held = new Held{buffer.pool(), nullptr};
    held->memory = buffer.detach();
    nb::capsule owner(held, [](void* p) noexcept {
        auto* h = static_cast<Held*>(p);
        h->pool->release(h->memory);
        delete h;
    });
    return Made<T>(static_cast<T*>(held->memory), {static_cast<size_t>(size)}, owner);
}

inline void check_indptr(const In1<int64_t>& indptr) {
    if (indptr.shape(0) < 1) fail("indptr must hold at least one element");
}

template <class Any>
int64_t element_size(const Any& a) {
    return a.dtype().bits * a.dtype().lanes / 8;
}

template <class Any>
int64_t row_bytes(const Any& a) {
    int64_t bytes = element_size(a);
    for (size_t i = 1; i < a.ndim(); ++i) bytes *= static_cast<int64_t>(a.shape(i));
    return bytes;
}

template <class Any>
Element element_of(const Any& a, const char* name) {
    const auto code = static_cast<nb::dlpack::dtype_code>(a.dtype().code);
    const int bits = a.dtype().bits;
    if (code == nb::dlpack::dtype_code::Float && bits == 32) return Element::f32;
    if (code == nb::dlpack::dtype_code::Float && bits == 64) return Element::f64;
    if (code == nb::dlpack::dtype_code::Float && bits == 16) return Element::f16;
    if (code == nb::dlpack::dtype_code::Bfloat && bits == 16) return Element::bf16;
    fail(name, " must be float32, float64, float16 or bfloat16");
}

inline const void* coefficients(const std::optional<In>& a, Element element, int64_t size, const char* name) {
    if (!a) return nullptr;
    check_vector(*a, name);
    const int bits = element == Element::f64 ? 64 : 32;
    if (a->dtype().code != static_cast<uint8_t>(nb::dlpack::dtype_code::Float) || a->dtype().bits != bits)
        fail(name, " must be float", std::to_string(bits), " for these rows");
    if (length(*a) != size) fail(name, " must have ", std::to_string(size), " elements");
    return a->data();
}

inline void check_matrix(const In& a, const char* name) {
    if (a.ndim() != 2) fail(name, " must have two dimensions");
}

}  // namespace headrace
