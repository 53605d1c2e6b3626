// What the files that bind kernels to Python share: arrays come in by DLPack or the buffer protocol without copies, are
// checked, and the GIL is released before any work.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
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
void bind_attend_time(nb::module_& m);
void bind_gru(nb::module_& m);
void bind_sample(nb::module_& m);
void bind_split(nb::module_& m);
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
    if (a.ndim() < 1) fail("an array must have at least one dimension: this one is a single number");
    return static_cast<int64_t>(a.shape(0));
}

// No memory holds more of anything: sums of counts up to here fit 64 bits. Products do not: see product_of.
constexpr int64_t kMostCount = int64_t{1} << 56;

inline void check_count(int64_t count, const char* name) {
    if (count < 0) fail(name, " must not be negative, but is ", std::to_string(count));
    if (count > kMostCount) fail(name, " must be at most 2**56, but is ", std::to_string(count));
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

inline Ids ids_of(const In& a, const char* name) {
    return with_ids(a, name, [&](const auto* data) { return Ids{data, sizeof(*data) == 8}; });
}
inline Ids ids_of(const std::optional<In>& a, const char* name) { return a ? ids_of(*a, name) : Ids{}; }

// An array over `size` elements at `data`, which `memory` holds until the last array over it dies.
template <class T, class Memory>
Made<T> made_over(T* data, int64_t size, Memory memory) {
    auto held = std::make_unique<Memory>(std::move(memory));
    nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<Memory*>(p); });
    held.release();
    return Made<T>(data, {static_cast<size_t>(size)}, owner);
}

template <class T>
Made<T> made(Array<T> array) {
    T* data = array.data();
    const int64_t size = array.size();
    return made_over(data, size, std::move(array));
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

template <class T>
Made<T> made(Buffer buffer, int64_t size) {
    T* data = buffer.as<T>();
    return made_over(data, size, std::move(buffer));
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
    for (size_t i = 1; i < a.ndim(); ++i)
        if (__builtin_mul_overflow(bytes, static_cast<int64_t>(a.shape(i)), &bytes)) fail("a row must have less than 2**63 bytes");
    return bytes;
}

// The memory of an array that a call reads or writes; none for an argument that is left out.
struct Span {
    const char *name, *begin = nullptr, *end = nullptr;

    template <class Any>
    Span(const char* name_, const Any& a) : name(name_), begin(reinterpret_cast<const char*>(a.data())), end(begin + a.nbytes()) {}
    template <class Any>
    Span(const char* name_, const std::optional<Any>& a) : name(name_) {
        if (a) *this = Span(name_, *a);
    }
    Span(const char* name_, const void* begin_, int64_t bytes)
        : name(name_), begin(static_cast<const char*>(begin_)), end(begin + bytes) {}
    bool overlaps(const Span& other) const {
        return begin < other.end && other.begin < end && begin != end && other.begin != other.end;
    }
};

// Kernels write while they read, in the order that suits them: what is written must share no memory with anything else.
inline void check_apart(std::initializer_list<Span> written, std::initializer_list<Span> read) {
    const auto refuse = [](const Span& a, const Span& b) {
        if (a.overlaps(b)) fail(a.name, " overlaps ", b.name, " in memory: give it memory of its own");
    };
    for (const Span* a = written.begin(); a != written.end(); ++a) {
        for (const Span* b = a + 1; b != written.end(); ++b) refuse(*a, *b);
        for (const Span& b : read) refuse(*a, b);
    }
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
