// The online softmax over one page of scores, shared by every kind of attention.
#pragma once
#include "functions.h"
#include "kernels.h"

namespace PHASELINE_LEVEL {

constexpr float NOTHING = -1e30f;  // the largest score of no score: finite, so that differences stay numbers

// Lanes first .. last-1 of x, as far as there are such; `other` elsewhere.
inline Float within(int first, int last, Float x, Float other) {
    const auto lanes = [](int n) { return n < 0 ? 0 : n > LANES ? LANES : n; };
    return first_lanes(lanes(first), other, first_lanes(lanes(last), x, other));
}

// Turns scores first .. last-1 (perhaps none, perhaps more than a page) into weights e^(score - largest), the others
// into 0; `top` and `total`, whose lanes are summed at the end, take them in. Returns what earlier weights shrink by.
inline float weigh_page(float* scores, int first, int last, float& top, Float& total) {
    static_assert(phaseline::PAGE == 2 * LANES);
    const bool whole = first <= 0 && last >= phaseline::PAGE;
    Float s0 = load(scores), s1 = load(scores + LANES);
    if (!whole) {
        s0 = within(first, last, s0, splat(NOTHING));
        s1 = within(first - LANES, last - LANES, s1, splat(NOTHING));
    }
    float shrink = 1.0f;
    if (!all_up_to(s0, s1, top)) {  // rarely, after some pages
        const float now = largest(max(s0, s1));
        float e[LANES];
        store(e, exp(splat(top - now)));
        shrink = e[0];
        top = now;
        // exp makes numbers of all lanes: what comes of a score that is none, or infinite, shows here.
        const bool lost = any_nan(s0 - splat(now)) || any_nan(s1 - splat(now));
        total = lost ? splat(__builtin_nanf("")) : total * splat(shrink);
    }
    Float p0 = exp(s0 - splat(top)), p1 = exp(s1 - splat(top));
    if (!whole) {
        p0 = within(first, last, p0, zero());
        p1 = within(first - LANES, last - LANES, p1, zero());
    }
    total = total + (p0 + p1);
    store(scores, p0);
    store(scores + LANES, p1);
    return shrink;
}

}  // namespace PHASELINE_LEVEL
