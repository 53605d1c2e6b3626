// Sines and cosines of a vector at once, without a call per number. For vector_*.cpp alone.
//
// An angle is n pi/2 + r with pi/2 in parts (Cody and Waite) of so few bits that their products with n are exact; sin(r) and cos(r)
// are the polynomials of Cephes (float) and fdlibm (double). Angles of floats are reduced in double. No fused operations: every
// instruction set gives the same bits. For |angle| up to kLargestAngle.
#pragma once

#include "vector_wide.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr double kLargestAngle = 2147483648.0;
constexpr double kTwoOverPi = 0.63661977236758134308, kCosineRound = 6755399441055744.0;
// pi/2 to 22 bits, the next 22, and what is left of it.
constexpr double kPart1 = 0x1.921fbp+0, kPart2 = 0x1.5110bp-22, kPart3 = 0x1.18469898cc517p-44;

template <class S>
struct SineCosine {
    Wide<S, 64> sine, cosine;
};

// Sine and cosine of r + n pi/2 from those of r. `quarter` has n in its low bits.
template <class V, class Bits>
HEADRACE_INLINE void turn(V& sine, V& cosine, Bits quarter) {
    const V s = sine, c = cosine;
    const Bits odd = -(quarter & 1);
    sine = odd ? c : s;
    cosine = odd ? s : c;
    sine = (quarter & 2) != 0 ? -sine : sine;
    cosine = ((quarter + 1) & 2) != 0 ? -cosine : cosine;
}

HEADRACE_INLINE SineCosine<double> sine_cosine(Wide<double, 64> angle) {
    SineCosine<double> out;
    for (int i = 0; i < angle.kParts; ++i) {
        using V = typename Wide<double, 64>::Part;
        typedef int64_t Bits __attribute__((vector_size(sizeof(V))));
        const V x = angle.part[i], shifted = x * kTwoOverPi + kCosineRound, n = shifted - kCosineRound;
        const V r = ((x - n * kPart1) - n * kPart2) - n * kPart3, z = r * r;
        V s = z * 1.58969099521155010221e-10 - 2.50507602534068634195e-08;
        s = s * z + 2.75573137070700676789e-06;
        s = s * z - 1.98412698298579493134e-04;
        s = s * z + 8.33333333332248946124e-03;
        s = s * z - 1.66666666666666324348e-01;
        V c = z * -1.13596475577881948265e-11 + 2.08757232129817482790e-09;
        c = c * z - 2.75573143513906633035e-07;
        c = c * z + 2.48015872894767294178e-05;
        c = c * z - 1.38888888888741095749e-03;
        c = c * z + 4.16666666666666019037e-02;
        V sine = r + r * (z * s), cosine = (1.0 - 0.5 * z) + z * z * c;
        turn(sine, cosine, reinterpret_cast<Bits>(shifted));
        out.sine.part[i] = sine;
        out.cosine.part[i] = cosine;
    }
    return out;
}

HEADRACE_INLINE SineCosine<float> sine_cosine(Wide<float, 64> angle) {
    SineCosine<float> out;
    constexpr int N = Wide<float, 64>::kPartLanes, H = N / 2;
    typedef float Half __attribute__((vector_size(4 * H)));
    typedef double Double __attribute__((vector_size(8 * H)));
    typedef int32_t HalfBits __attribute__((vector_size(4 * H)));
    for (int i = 0; i < angle.kParts; ++i) {
        using V = typename Wide<float, 64>::Part;
        typedef int32_t Bits __attribute__((vector_size(sizeof(V))));
        Half half[2], rest[2];
        HalfBits turns[2];
        __builtin_memcpy(half, &angle.part[i], sizeof(V));
        for (int j = 0; j < 2; ++j) {
            const Double x = __builtin_convertvector(half[j], Double);
            const Double n = (x * kTwoOverPi + kCosineRound) - kCosineRound;
            rest[j] = __builtin_convertvector((x - n * kPart1) - n * (kPart2 + kPart3), Half);
            turns[j] = __builtin_convertvector(n, HalfBits);
        }
        const V r = load_as<V>(rest), z = r * r;
        const Bits quarter = load_as<Bits>(turns);
        V s = z * -1.9515295891e-4f + 8.3321608736e-3f;
        s = s * z - 1.6666654611e-1f;
        V c = z * 2.443315711809948e-5f - 1.388731625493765e-3f;
        c = c * z + 4.166664568298827e-2f;
        V sine = r + r * (z * s), cosine = (1.0f - 0.5f * z) + z * z * c;
        turn(sine, cosine, quarter);
        out.sine.part[i] = sine;
        out.cosine.part[i] = cosine;
    }
    return out;
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
