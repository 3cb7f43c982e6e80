// Elementary functions of vectors, to a few units in the last place.
#pragma once
#include "simd.h"

namespace PHASELINE_LEVEL {

// x = n ln2 + r with |r| <= ln2/2, for |x| <= 88.
struct Reduced {
    Float r, power;  // 2^n
};
inline Reduced reduce(Float x) {
    Float n = round(x * splat(1.44269504f));
    Float r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    return {r, as_float(shift_left<23>(to_int(n) + splat_int(127)))};
}

// e^x for x <= 88: 2^n * e^r with |r| <= ln2/2; the degree-6 polynomial's error is below 2 ulp. Below -87.3
// it stays at e^-87.3, the least normal number.
inline Float exp(Float x) {
    const auto [r, power] = reduce(max(min(x, splat(88.0f)), splat(-87.3f)));
    Float p = splat(1.0f / 720);
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return p * power;
}

// The same, but what is not finite stays visible: times zero it is NaN.
inline Float sound_exp(Float x) { return exp(x) + x * zero(); }

// tanh(x) = -e / (2 + e) with e = e^-2x - 1 = 2^n (e^r - 1) + (2^n - 1), which keeps its digits near zero: an error below
// 5 ulp. What is not finite stays visible.
inline Float tanh(Float x) {
    const auto [r, power] = reduce(max(min(x * splat(-2.0f), splat(88.0f)), splat(-87.3f)));
    Float p = splat(1.0f / 5040);
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    const Float e = fma(power, p * r, power - splat(1.0f));
    return (zero() - e) / (splat(2.0f) + e) + x * zero();
}

}  // namespace PHASELINE_LEVEL
