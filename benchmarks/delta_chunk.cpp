// Delta attention's chunk form beside the recurrence that the engine runs, for `delta_forms.py`: one head, one thread.
// Sixteen rows meet the state at once; what they write to each other solves a triangular system. What row s wrote is
// seen by row t decayed by the product of the decays between: running products, never e^-G, which has no bound.
#include <algorithm>

#include "level/delta.cpp"

namespace PHASELINE_LEVEL {

namespace {

constexpr int CHUNK = 16, ROWS = 8;  // rows of a chunk, and of a tile of products
constexpr int MAX_DIM = 256;

struct Scratch {
    alignas(64) float k[CHUNK][MAX_DIM], q[CHUNK][MAX_DIM];  // decayed since the chunk began
    alignas(64) float left[CHUNK][MAX_DIM];                  // k of each row, decayed since
    alignas(64) float fade[MAX_DIM];                         // of the whole chunk
    float below[CHUNK][CHUNK], seen[CHUNK][CHUNK];           // [t][s]
};

// All that does not need the state.
void pairs(DeltaRows rows, int n, int dim, Scratch& w) {
    for (int c = 0; c < dim; c += LANES) store(w.fade + c, splat(1.0f));
    for (int t = 0; t < n; t++) {
        const DeltaRow row = rows.row(t);
        for (int s = 0; s < t; s += 4) {
            const int count = std::min(4, t - s);
            Float k[4], q[4];
            for (int j = 0; j < 4; j++) k[j] = q[j] = zero();
            for (int c = 0; c < dim; c += LANES) {
                const Float fade = load(row.fade() + c), of_k = load(row.k() + c), of_q = load(row.q() + c);
                for (int j = 0; j < count; j++) {
                    const Float x = load(w.left[s + j] + c) * fade;
                    store(w.left[s + j] + c, x);
                    k[j] = fma(of_k, x, k[j]), q[j] = fma(of_q, x, q[j]);
                }
            }
            for (int j = 0; j < count; j++) w.below[t][s + j] = row.beta() * sum(k[j]), w.seen[t][s + j] = sum(q[j]);
        }
        w.seen[t][t] = row.both();
        for (int c = 0; c < dim; c += LANES) {
            const Float fade = load(w.fade + c) * load(row.fade() + c), k = load(row.k() + c);
            store(w.fade + c, fade);
            store(w.left[t] + c, k);
            store(w.k[t] + c, k * fade);
            store(w.q[t] + c, load(row.q() + c) * fade);
        }
    }
}

// out[r] = x[r] . strip, for ROWS rows and two strips.
void products(const float (*x)[MAX_DIM], const float* strips, int dim, Float (*out)[2]) {
    const size_t stride = size_t(dim) * LANES;
    Float acc[ROWS][2];
    for (auto& row : acc) row[0] = row[1] = zero();
    for (int i = 0; i < dim; i++) {
        const Float a = load(strips + i * LANES), b = load(strips + stride + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const Float weight = splat(x[r][i]);
            acc[r][0] = fma(weight, a, acc[r][0]), acc[r][1] = fma(weight, b, acc[r][1]);
        }
    }
    for (int r = 0; r < ROWS; r++) out[r][0] = acc[r][0], out[r][1] = acc[r][1];
}

// One strip's corrections, outputs and new state, from its products with k and q.
void close_strip(const Scratch& w, DeltaRows rows, int n, int dim, int column, const Float (*asked)[2], const Float (*seen)[2],
                 int m, float* strip, RowsOut out, int first) {
    Float d[CHUNK];
    for (int t = 0; t < CHUNK; t++) d[t] = zero();
    for (int t = 0; t < n; t++) {
        const DeltaRow row = rows.row(t);
        Float x = splat(row.beta()) * (load(row.v() + column) - asked[t][m]);
        for (int s = 0; s < t; s++) x = x - splat(w.below[t][s]) * d[s];
        d[t] = x;
        Float o = seen[t][m];
        for (int s = 0; s <= t; s++) o = fma(splat(w.seen[t][s]), d[s], o);
        store(out.row(first + t) + column, o);
    }
    for (int i = 0; i < dim; i++) {
        Float even = load(strip + i * LANES) * splat(w.fade[i]), odd = zero();
#pragma GCC unroll 16
        for (int s = 0; s < CHUNK; s += 2) {
            even = fma(splat(w.left[s][i]), d[s], even);
            odd = fma(splat(w.left[s + 1][i]), d[s + 1], odd);
        }
        store(strip + i * LANES, even + odd);
    }
}

}  // namespace

// `dim` must be a multiple of 32, the state is updated in place.
void chunked(DeltaRows rows, int count, int dim, float* state, RowsOut out) {
    static thread_local Scratch w;
    for (int first = 0; first < count; first += CHUNK) {
        const int n = std::min(CHUNK, count - first);
        const DeltaRows here{rows.row(first).data, rows.padded};
        for (int t = n; t < CHUNK; t++)
            for (int c = 0; c < dim; c++) w.k[t][c] = w.q[t][c] = w.left[t][c] = 0;
        pairs(here, n, dim, w);
        for (int column = 0; column < dim; column += 2 * LANES) {
            float* strips = state + size_t(column) * size_t(dim);
            Float asked[CHUNK][2], seen[CHUNK][2];
            for (int r = 0; r < CHUNK; r += ROWS) products(w.k + r, strips, dim, asked + r), products(w.q + r, strips, dim, seen + r);
            for (int m = 0; m < 2; m++)
                close_strip(w, here, n, dim, column + m * LANES, asked, seen, m, strips + size_t(m * dim) * LANES, out, first);
        }
    }
}

}  // namespace PHASELINE_LEVEL

extern "C" {

// rows: `count` of DeltaRow::floats(dim); state [strip][i][16], from a cache line on; out (count, dim).
void run_recurrence(float* rows, int count, int dim, float* state, float* out) {
    PHASELINE_LEVEL::delta({{rows, dim}, count, dim, 0, dim / 16, state, state, {out, size_t(dim)}});
}

void run_chunks(float* rows, int count, int dim, float* state, float* out) {
    PHASELINE_LEVEL::chunked({rows, dim}, count, dim, state, {out, size_t(dim)});
}

int row_floats(int dim) { return int(phaseline::DeltaRow::floats(dim)); }

}
