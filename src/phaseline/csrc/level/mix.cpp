// The rows that earlier layers began with and the present one, averaged by the softmax of their scores.
#include "functions.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

static_assert(MAX_MIX <= LANES);

// sum(x / sqrt(mean(x^2) + eps) * weight)
float score(const float* x, const RowMix& m) {
    Float squares = zero(), products = zero();
    for (int c = 0; c < m.width; c += LANES) {
        const Float v = load_up_to(x + c, m.width - c);
        squares = fma(v, v, squares);
        products = fma(v, load_up_to(m.weight + c, m.width - c), products);
    }
    return sum(products) * (1.0f / __builtin_sqrtf(sum(squares) / float(m.width) + m.eps));
}

}  // namespace

void residual_mix(const RowMix& m, float* out) {
    float shares[LANES];
    for (int i = 0; i < LANES; i++) shares[i] = i < m.count ? score(m.rows[i], m) : shares[0];
    const Float scores = load(shares);
    const Float e = first_lanes(m.count, sound_exp(scores - splat(largest(scores))), zero());
    store(shares, e / splat(sum(e)));
    for (int c = 0; c < m.width; c += LANES) {
        const int lanes = m.width - c < LANES ? m.width - c : LANES;
        Float y = zero();
        for (int i = 0; i < m.count; i++) y = fma(splat(shares[i]), load_first(m.rows[i] + c, lanes), y);
        store_first(out + c, lanes, y);
    }
}

}  // namespace PHASELINE_LEVEL
