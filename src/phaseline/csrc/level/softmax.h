// The online softmax over one page of scores, shared by every kind of attention.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace PHASELINE_LEVEL {

constexpr float NOTHING = -1e30f;  // the largest score of no score: finite, so that differences stay numbers

// Lanes first .. last-1 of x, as far as there are such; `other` elsewhere.
inline Float within(int first, int last, Float x, Float other) {
    const auto lanes = [](int n) { return n < 0 ? 0 : n > LANES ? LANES : n; };
    return first_lanes(lanes(first), other, first_lanes(lanes(last), x, other));
}

// Turns scores first .. last-1 (perhaps none, perhaps more than a page) into weights e^(score - largest), the others
// into 0; `top` and `total` take them in. Returns what earlier weights shrink by.
inline float weigh_page(float* scores, int first, int last, float& top, float& total) {
    static_assert(phaseline::PAGE == 2 * LANES);
    const Float s0 = within(first, last, load(scores), splat(NOTHING));
    const Float s1 = within(first - LANES, last - LANES, load(scores + LANES), splat(NOTHING));
    const float highest = largest(max(s0, s1)), before = top;
    const float now = highest > before ? highest : before;
    const Float p0 = within(first, last, exp(s0 - splat(now)), zero());
    const Float p1 = within(first - LANES, last - LANES, exp(s1 - splat(now)), zero());
    float shrink = 1.0f;
    if (now != before) {
        float e[LANES];
        store(e, exp(splat(before - now)));
        shrink = e[0];
    }
    top = now;
    total = total * shrink + sum(p0 + p1);
    store(scores, p0);
    store(scores + LANES, p1);
    return shrink;
}

}  // namespace PHASELINE_LEVEL
