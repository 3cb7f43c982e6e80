// Kimi delta attention by its recurrence, in chunks and in decodes alike: the same operations in the same order.
#include "functions.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

static_assert(PANEL == LANES);

#if defined(__AVX512F__)
constexpr int AT_ONCE = 2;  // strips whose sums a pass keeps in registers
#else
constexpr int AT_ONCE = 1;
#endif

void store_up_to(float* p, int n, Float a) { n >= LANES ? store(p, a) : store_first(p, n, a); }
inline Float sigmoid(Float x) { return splat(1.0f) / (splat(1.0f) + sound_exp(zero() - x)); }

// log(1 + e^x): the larger of x and 0, plus log(1 + u) = 2 atanh(z) for u = e^-|x| and z = u / (2 + u) <= 1/3, where eight
// terms of the series leave less than 2^-29.
inline Float softplus(Float x) {
    const Float u = sound_exp(zero() - abs(x)), z = u / (splat(2.0f) + u), w = z * z;
    Float p = splat(1.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2) p = fma(p, w, splat(1.0f / float(odd)));
    return max(zero(), x) + splat(2.0f) * z * p;
}

// silu of the convolution of one part (q, k or v) over the latest rows, zeros behind it; returns the sum of squares.
float mix(const DeltaHead& h, int part, const float* const* recent, float* out) {
    const float* taps = h.mix + part * h.taps * h.dim;
    Float squares = zero();
    for (int c = 0; c < h.dim; c += LANES) {
        const int lanes = h.dim - c;
        Float y = zero();
        for (int i = 0; i < h.taps; i++)
            y = fma(load_up_to(recent[i] + c, lanes), load_up_to(taps + i * h.dim + c, lanes), y);
        y = y * sigmoid(y);
        squares = fma(y, y, squares);
        store(out + c, y);
    }
    return sum(squares);
}

// k d^T: a correction that the state has yet to take, for M strips.
template <int M> struct Correction {
    const float* k;
    Float d[M];
};

// Row i of strip m, with the correction of the row before if there is one, decayed.
template <int M, bool AFTER>
Float decayed(const float* strips, size_t stride, int i, int m, const Correction<M>& before, Float fade) {
    Float s = load(strips + size_t(m) * stride + i * LANES);
    if constexpr (AFTER) s = fma(splat(before.k[i]), before.d[m], s);
    return s * fade;
}

// A snapshot comes from memory, and a decode's goes there: while M strips are read and then written, the next M are asked
// for, half of them in each pass, so that memory never rests. The read pass asks for its own lines nearer by, too.
template <int M, bool WRITING> void fetch_strips(const float* line, size_t stride, int m) {
    constexpr int NEARER = 256;  // floats
    if constexpr (!WRITING) __builtin_prefetch(line + size_t(m) * stride + NEARER);
    if ((m >= (M + 1) / 2) == WRITING) __builtin_prefetch(line + size_t(M + m) * stride, 0, 2);
}

// Decays the state, reads it for k and for q, and finds the correction: o = S^T q = (decayed S)^T q + (q . k) d. The state
// goes from `from` to `to`, unless it is the LAST row's: that one comes by again, in `correct`.
template <int M, bool AFTER, bool LAST>
void advance(const float* from, float* to, int dim, DeltaRow row, int column, const Correction<M> before,
             Correction<M>& now, Float* out) {
    const float *fades = row.fade(), *ks = row.k(), *qs = row.q();
    const size_t stride = size_t(dim) * LANES;
    Float asked[2][M], seen[2][M];  // even and odd i
    for (int half = 0; half < 2; half++)
        for (int m = 0; m < M; m++) asked[half][m] = seen[half][m] = zero();
    const auto step = [&](int i, int half) __attribute__((always_inline)) {
        const Float fade = splat(fades[i]), k = splat(ks[i]), q = splat(qs[i]);
        for (int m = 0; m < M; m++) {
            if constexpr (!AFTER) fetch_strips<M, false>(from + i * LANES, stride, m);
            const Float s = decayed<M, AFTER>(from, stride, i, m, before, fade);
            asked[half][m] = fma(k, s, asked[half][m]);
            seen[half][m] = fma(q, s, seen[half][m]);
            if constexpr (!LAST) store(to + size_t(m) * stride + i * LANES, s);
        }
    };
    int i = 0;
    for (; i + 1 < dim; i += 2) step(i, 0), step(i + 1, 1);
    if (i < dim) step(i, 0);
    now.k = row.k();
    for (int m = 0; m < M; m++) {
        now.d[m] = splat(row.beta()) * (load(row.v() + column + m * LANES) - (asked[0][m] + asked[1][m]));
        out[m] = fma(splat(row.both()), now.d[m], seen[0][m] + seen[1][m]);
    }
}

// The state behind the last row. A decode's is not read again soon, and goes past the caches.
template <int M, bool AFTER>
void correct(const float* from, float* to, int dim, DeltaRow row, const Correction<M> before, const Correction<M> now) {
    const float* fades = row.fade();
    const size_t stride = size_t(dim) * LANES;
    for (int i = 0; i < dim; i++) {
        const Float fade = splat(fades[i]), k = splat(now.k[i]);
        for (int m = 0; m < M; m++) {
            if constexpr (!AFTER) fetch_strips<M, true>(from + i * LANES, stride, m);
            const Float s = fma(k, now.d[m], decayed<M, AFTER>(from, stride, i, m, before, fade));
            float* line = to + size_t(m) * stride + i * LANES;
            if constexpr (AFTER) store(line, s);
            else stream(line, s);
        }
    }
}

// All rows through M strips from strip `first` on.
template <int M> void strips(const DeltaTile& t, int first) {
    const float* from = t.from + size_t(first) * size_t(t.dim) * LANES;
    float* to = t.to + size_t(first) * size_t(t.dim) * LANES;
    const int column = first * LANES;
    Correction<M> before{}, now{};
    for (int r = 0; r < t.count; r++) {
        const DeltaRow row = t.rows.row(r);
        const bool last = r + 1 == t.count;
        Float out[M];
        if (r == 0) (last ? advance<M, false, true> : advance<M, false, false>)(from, to, t.dim, row, column, before, now, out);
        else (last ? advance<M, true, true> : advance<M, true, false>)(to, to, t.dim, row, column, before, now, out);
        for (int m = 0; m < M; m++) {
            const int c = column + m * LANES;
            store_up_to(t.out.row(r) + c, t.dim - c, out[m]);
        }
        if (last && r == 0) correct<M, false>(from, to, t.dim, row, before, now);
        else if (last) correct<M, true>(to, to, t.dim, row, before, now);
        before = now;
    }
}

}  // namespace

void delta_prepare(const DeltaHead& h, const DeltaInput& in, DeltaRow out) {
    const float q_size = 1.0f / __builtin_sqrtf(mix(h, 0, in.recent[0], out.q()) + h.unit_eps);
    const float k_size = 1.0f / __builtin_sqrtf(mix(h, 1, in.recent[1], out.k()) + h.unit_eps);
    mix(h, 2, in.recent[2], out.v());
    const Float q_unit = splat(q_size / __builtin_sqrtf(float(h.dim))), k_unit = splat(k_size);
    Float both = zero();
    for (int c = 0; c < h.dim; c += LANES) {
        const Float q = load(out.q() + c) * q_unit, k = load(out.k() + c) * k_unit;
        both = fma(q, k, both);
        store(out.q() + c, q);
        store(out.k() + c, k);
        const int lanes = h.dim - c;
        const Float r = load_up_to(in.decay + c, lanes) + load_up_to(h.shift + c, lanes);
        const Float g = h.bounded ? splat(h.lowest) * sigmoid(zero() - splat(h.rate) * r) : splat(h.rate) * softplus(r);
        store(out.fade() + c, sound_exp(g));
    }
    store(&out.beta(), sigmoid(splat(in.beta)));
    out.both() = sum(both);
}

void delta(const DeltaTile& t) {
    int s = t.first_strip;
    for (; s + AT_ONCE <= t.end_strip; s += AT_ONCE) strips<AT_ONCE>(t, s);
    for (; s < t.end_strip; s++) strips<1>(t, s);
    if (t.count == 1) settle();
}

void gate(const float* g, float* x, int n) {
    for (int c = 0; c < n; c += LANES) store_up_to(x + c, n - c, load_up_to(x + c, n - c) * sigmoid(load_up_to(g + c, n - c)));
}

}  // namespace PHASELINE_LEVEL
