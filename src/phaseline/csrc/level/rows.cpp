// Work on single rows: norms, packing before a product, rotation.
#include "dot.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

// The sum over lanes of `add`, which puts sixteen entries of x into an accumulator.
template <class F> float sum_over(const float* x, int n, F add) {
    Float acc = zero();
    int k = 0;
    for (; k + LANES <= n; k += LANES) acc = add(acc, load(x + k));
    if (k < n) acc = first_lanes(n - k, add(acc, load_first(x + k, n - k)), acc);
    return sum(acc);
}

void norm_row(const float* x, int n, Norm norm, const float* residual, float* y) {
    const float mean = norm.bias ? sum_over(x, n, [](Float acc, Float v) { return acc + v; }) / float(n) : 0.0f;
    const Float centre = splat(mean);
    const float squares = sum_over(x, n, [=](Float acc, Float v) { return fma(v - centre, v - centre, acc); });
    const Float scale = splat(1.0f / __builtin_sqrtf(squares / float(n) + norm.eps));
    for (int k = 0; k < n; k += LANES) {
        const int lanes = n - k;
        Float v = (load_up_to(x + k, lanes) - centre) * scale * load_up_to(norm.weight + k, lanes);
        if (norm.bias) v = v + load_up_to(norm.bias + k, lanes);
        if (residual) v = load_up_to(residual + k, lanes) + v;
        if (lanes >= LANES) store(y + k, v);
        else store_first(y + k, lanes, v);
    }
}

void quantise(const float* x, QuantBlock& out) {
    constexpr float TOP = 127 * 128;
    constexpr float TINY = 1e-30f;  // below it TOP / top could overflow; such a block is zero
    const Float a = load(x), b = load(x + LANES);
    const float top = largest(max(abs(a), abs(b)));
    const Float inverse = splat(top > TINY ? TOP / top : 0.0f);
    const Int qa = to_int(round(a * inverse)), qb = to_int(round(b * inverse));
    // What is not finite must stay visible: times zero it is NaN, and makes the scale so.
    out.scale = any_nan(a * zero() + b * zero()) ? __builtin_nanf("") : top / TOP;
    const uint32_t first = sum(qa), second = sum(qb);  // what is not finite became the least integer: sums wrap
    out.less[0] = int32_t(0 - first), out.less[1] = int32_t(0 - second), out.less[2] = int32_t(0 - first - second);
    out.sum = out.scale * float(int32_t(first + second));
    store_words(qa, qb, out.words);
}

}  // namespace

void prepare(RowsIn x, int row, int count, int cols, Norm norm, Prepared into, float* scratch) {
    for (int r = 0; r < count; r++) {
        const float* source = x.row(row + r);
        if (norm.weight) {
            norm_row(source, cols, norm, nullptr, scratch);
            source = scratch;
        }
        if (into.plain) {
            auto* out = reinterpret_cast<float*>(into.tile(row));
            for (int k = 0; k < cols; k++) out[k * count + r] = source[k];
        } else {
            auto* out = reinterpret_cast<QuantBlock*>(into.tile(row));
            for (int b = 0; b < cols / BLOCK; b++) quantise(source + b * BLOCK, out[b * count + r]);
        }
    }
}

void normalise(const float* x, const float* residual, float* out, int groups, int width, Norm norm) {
    for (int g = 0; g < groups; g++, x += width, out += width) {
        norm_row(x, width, norm, residual, out);
        if (residual) residual += width;
    }
}

void rope(const float* __restrict x, float* __restrict out, const float* angles, int heads, int head_dim, int dims,
          bool halves) {
    const int pairs = dims / 2;
    const float *cosine = angles, *sine = angles + pairs;
    for (int h = 0; h < heads; h++, x += head_dim, out += head_dim) {
        if (halves) {
            for (int i = 0; i < pairs; i++) {
                out[i] = x[i] * cosine[i] - x[i + pairs] * sine[i];
                out[i + pairs] = x[i] * sine[i] + x[i + pairs] * cosine[i];
            }
        } else {
            for (int i = 0; i < pairs; i++) {
                out[2 * i] = x[2 * i] * cosine[i] - x[2 * i + 1] * sine[i];
                out[2 * i + 1] = x[2 * i] * sine[i] + x[2 * i + 1] * cosine[i];
            }
        }
        for (int i = dims; i < head_dim; i++) out[i] = x[i];
    }
}

}  // namespace PHASELINE_LEVEL
