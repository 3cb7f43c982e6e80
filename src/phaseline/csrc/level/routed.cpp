// Rows and their experts: choosing them, and adding up what they answer.
#include <algorithm>
#include <limits>

#include "functions.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

constexpr float LEAST_SUM = 0x1p-14f;

Float load_padded(const float* p, int n, float rest) {
    return n >= LANES ? load(p) : first_lanes(n, load_first(p, n), splat(rest));
}

void softmax(const float* x, int n, float* p) {
    const float low = -std::numeric_limits<float>::infinity();
    Float top = splat(low);
    for (int i = 0; i < n; i += LANES) top = max(load_padded(x + i, n - i, low), top);
    const Float largest_of_all = splat(largest(top));
    Float total = zero();
    for (int i = 0; i < n; i += LANES) {
        const Float e = sound_exp(load_padded(x + i, n - i, 0) - largest_of_all);
        store(p + i, e);
        total = total + first_lanes(std::min(n - i, LANES), e, zero());
    }
    const Float whole = splat(sum(total));
    for (int i = 0; i < n; i += LANES) store(p + i, load(p + i) / whole);
}

void sigmoid(const float* x, int n, float* p) {
    const Float one = splat(1.0f);
    for (int i = 0; i < n; i += LANES) store(p + i, one / (one + sound_exp(zero() - load_padded(x + i, n - i, 0))));
}

bool above(float a, float b) { return a > b || (b != b && a == a); }  // what is not a number comes last

// Numbers of the k largest of v[0 .. n-1], largest first, ties to the lower number.
void best(const float* v, int n, int k, int* ids) {
    for (int i = 0, held = 0; i < n; i++) {
        if (held == k && !above(v[i], v[ids[k - 1]])) continue;
        int at = held < k ? held++ : k - 1;
        for (; at > 0 && above(v[i], v[ids[at - 1]]); at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

// All experts outside the best groups fall to minus infinity.
void keep_groups(const RouteSpec& s, float* rank, float* worth, int* ids) {
    const int size = s.experts / s.groups;
    for (int g = 0; g < s.groups; g++) {
        int top[2];
        best(rank + g * size, size, s.group_best, top);
        worth[g] = rank[g * size + top[0]] + (s.group_best == 2 ? rank[g * size + top[1]] : 0.0f);
    }
    best(worth, s.groups, s.kept_groups, ids);
    std::sort(ids, ids + s.kept_groups);
    for (int g = 0, i = 0; g < s.groups; g++) {
        if (i < s.kept_groups && ids[i] == g) i++;
        else std::fill_n(rank + g * size, size, -std::numeric_limits<float>::infinity());
    }
}

}  // namespace

void route(const RouteSpec& s, const float* logits, float* chosen, float* shares, float* scratch) {
    const int padded = (s.experts + LANES - 1) / LANES * LANES;
    float *p = scratch, *rank = p + padded, *worth = rank + padded;
    int* ids = reinterpret_cast<int*>(worth + padded);
    if (s.softmax) softmax(logits, s.experts, p);
    else sigmoid(logits, s.experts, p);
    for (int i = 0; i < s.experts; i++) rank[i] = s.bias ? p[i] + s.bias[i] : p[i];
    if (s.groups > 1) keep_groups(s, rank, worth, ids);
    best(rank, s.experts, s.active, ids);
    float total = 0;
    for (int i = 0; i < s.active; i++) total += p[ids[i]];
    const float divisor = !s.renormalise ? 1.0f : total < LEAST_SUM ? LEAST_SUM : total;
    for (int i = 0; i < s.active; i++) {
        chosen[i] = float(ids[i]);
        shares[i] = p[ids[i]] / divisor * s.scale;
    }
}

void combine(const Combination& c, float* out) {
    for (int i = 0; i < c.width; i += LANES) {
        const int lanes = std::min(LANES, c.width - i);
        Float y = zero();
        for (int j = 0; j < c.count; j++) y = fma(splat(c.shares[j]), load_first(c.answers + c.rows[j] * c.stride + i, lanes), y);
        if (c.residual) y = load_first(c.residual + i, lanes) + y;
        store_first(out + i, lanes, y);
    }
}

}  // namespace PHASELINE_LEVEL
