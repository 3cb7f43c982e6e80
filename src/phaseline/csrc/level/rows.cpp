// Work on single rows: norm and packing before a product, rotation.
#include "dot.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

float sum_of_squares(const float* x, int n) {
    Float acc = zero();
    int k = 0;
    for (; k + LANES <= n; k += LANES) {
        const Float v = load(x + k);
        acc = fma(v, v, acc);
    }
    if (k < n) {
        const Float v = load_first(x + k, n - k);
        acc = fma(v, v, acc);
    }
    return sum(acc);
}

void rms_norm(const float* x, int n, Norm norm, float* y) {
    const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / float(n) + norm.eps);
    int k = 0;
    for (; k + LANES <= n; k += LANES) store(y + k, load(x + k) * splat(scale) * load(norm.weight + k));
    if (k < n) store_first(y + k, n - k, load_first(x + k, n - k) * splat(scale) * load_first(norm.weight + k, n - k));
}

void quantise(const float* x, QuantBlock& out) {
    constexpr float TOP = 127 * 128;
    constexpr float TINY = 1e-30f;  // below it TOP / top could overflow; such a block is zero
    const Float a = load(x), b = load(x + LANES);
    const float top = largest(max(abs(a), abs(b)));
    // What is not finite must stay visible: times zero it is NaN, and makes the scale so.
    const float unsound = sum(a * zero() + b * zero());
    const Float inverse = splat(top > TINY ? TOP / top : 0.0f);
    int32_t q[32];
    const Int qa = to_int(round(a * inverse)), qb = to_int(round(b * inverse));
    memcpy(q, &qa, sizeof qa);
    memcpy(q + LANES, &qb, sizeof qb);
    out.scale = top / TOP + unsound;
    for (int half = 0; half < 2; half++) {
        int32_t s = 0;
        for (int i = 0; i < 16; i++) s += q[16 * half + i];
        out.isum[half] = s;
    }
    out.sum = out.scale * float(out.isum[0] + out.isum[1]);
    store_words(q, out.words);
}

}  // namespace

void prepare(RowsIn x, int row, int count, int cols, Norm norm, Prepared into, float* scratch) {
    for (int r = 0; r < count; r++) {
        const float* source = x.row(row + r);
        if (norm.weight) {
            rms_norm(source, cols, norm, scratch);
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

void rope(const float* x, float* out, const float* angles, int heads, int head_dim, int dims) {
    for (int h = 0; h < heads; h++, x += head_dim, out += head_dim) {
        for (int i = 0; i < dims; i += 2) {
            const float c = angles[i], s = angles[i + 1], a = x[i], b = x[i + 1];
            out[i] = a * c - b * s;
            out[i + 1] = a * s + b * c;
        }
        for (int i = dims; i < head_dim; i++) out[i] = x[i];
    }
}

}  // namespace PHASELINE_LEVEL
