// Matrix products. The sum over K runs in one fixed order for every row, whatever the number of rows: a row's bits do
// not depend on its neighbours, on the chunk or on the thread.
#include "amx/tile_dot.h"
#include "decode.h"
#include "dot.h"
#include "fetch.h"
#include "functions.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

// What one scale covers joins the sums.
template <Scales S, int M, int OFFSET, int PART>
void join(const Dot<M, OFFSET, PART>& dot, const Scale& s, const QuantBlock* a, Float* acc) {
#pragma GCC unroll 8
    for (int r = 0; r < M; r++) {
        acc[r] = fma(to_float(dot.value(r)), s.d * splat(a[r].scale), acc[r]);
        if constexpr (S == Scales::K2) acc[r] = fma(to_float(splat_int(a[r].less[PART])), s.m * splat(a[r].scale), acc[r]);
        else if constexpr (has_minimum(S)) acc[r] = fma(s.m, splat(a[r].sum), acc[r]);
    }
}

// Block b, or half PART of it, joins the sums.
template <Codes C, Scales S, int OFFSET, int M, int PART>
void scaled(const uint8_t* codes, Bytes table, const uint8_t* scales, int b, const QuantBlock* a, Float* acc) {
    Dot<M, OFFSET, PART> dot(a);
    if constexpr (PART != 1) {
        dot.step(0, codes_at<C, 0>(codes, table), a);
        dot.step(1, codes_at<C, 1>(codes, table), a);
        dot.step(2, codes_at<C, 2>(codes, table), a);
        dot.step(3, codes_at<C, 3>(codes, table), a);
    }
    if constexpr (PART != 0) {
        dot.step(4, codes_at<C, 4>(codes, table), a);
        dot.step(5, codes_at<C, 5>(codes, table), a);
        dot.step(6, codes_at<C, 6>(codes, table), a);
        dot.step(7, codes_at<C, 7>(codes, table), a);
    }
    join<S>(dot, scale_at<S, PART % 2>(scales, b), a, acc);
}

// Quantised panel times a tile of M rows: y[r] = sum over blocks, in order.
template <Codes C, Scales S, int OFFSET, int M>
void quant_tile(const Matrix& w, int panel, bool cold, const QuantBlock* a, Float* y) {
    const uint8_t* scales = w.scales(panel);
    const uint8_t* codes = w.codes(panel);
    const Bytes table = table_of<C>(w.format);
    Float acc[M];
    for (int r = 0; r < M; r++) acc[r] = zero();
    for (int b = 0; b < w.blocks; b++, codes += code_bytes(C), a += M) {
        if (cold) fetch_ahead(codes, code_bytes(C));
        if constexpr (has_halves(S)) {
            scaled<C, S, OFFSET, M, 0>(codes, table, scales, b, a, acc);
            scaled<C, S, OFFSET, M, 1>(codes, table, scales, b, a, acc);
        } else {
            scaled<C, S, OFFSET, M, 2>(codes, table, scales, b, a, acc);
        }
    }
    for (int r = 0; r < M; r++) y[r] = is_table(C) ? acc[r] * splat(w.format.unit) : acc[r];
}

template <Codes C> Float plain_lanes(const uint8_t* p) {
    if constexpr (C == Codes::F32) return load(reinterpret_cast<const float*>(p));
    else if constexpr (C == Codes::F16) return load_half(reinterpret_cast<const uint16_t*>(p));
    else return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

template <Codes C, int M> void plain_tile(const Matrix& w, int panel, bool cold, const float* a, Float* y) {
    const uint8_t* codes = w.codes(panel);
    Float acc[M];
    for (int r = 0; r < M; r++) acc[r] = zero();
    for (int k = 0; k < w.cols; k++, codes += code_bytes(C), a += M) {
        if (cold && size_t(k) * code_bytes(C) % 64 == 0) fetch_ahead(codes, 64);
        const Float lanes = plain_lanes<C>(codes);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) acc[r] = fma(splat(a[r]), lanes, acc[r]);
    }
    for (int r = 0; r < M; r++) y[r] = acc[r];
}

template <int M> void tile(const Matrix& w, int panel, bool cold, const uint8_t* input, Float* y) {
    const Format& f = w.format;
    const auto* q = reinterpret_cast<const QuantBlock*>(input);
    const auto* x = reinterpret_cast<const float*>(input);
    if (f.codes == Codes::F32) return plain_tile<Codes::F32, M>(w, panel, cold, x, y);
    if (f.codes == Codes::F16) return plain_tile<Codes::F16, M>(w, panel, cold, x, y);
    if (f.codes == Codes::BF16) return plain_tile<Codes::BF16, M>(w, panel, cold, x, y);
    switch (f.codes) {
        case Codes::C2:
            if (f.scales == Scales::T) return quant_tile<Codes::C2, Scales::T, 0, M>(w, panel, cold, q, y);
            return quant_tile<Codes::C2, Scales::K2, 0, M>(w, panel, cold, q, y);
        case Codes::C4:
            if (f.scales == Scales::D) return quant_tile<Codes::C4, Scales::D, 8, M>(w, panel, cold, q, y);
            if (f.scales == Scales::DM) return quant_tile<Codes::C4, Scales::DM, 0, M>(w, panel, cold, q, y);
            return quant_tile<Codes::C4, Scales::K, 0, M>(w, panel, cold, q, y);
        case Codes::C5:
            if (f.scales == Scales::D) return quant_tile<Codes::C5, Scales::D, 16, M>(w, panel, cold, q, y);
            if (f.scales == Scales::DM) return quant_tile<Codes::C5, Scales::DM, 0, M>(w, panel, cold, q, y);
            return quant_tile<Codes::C5, Scales::K, 0, M>(w, panel, cold, q, y);
        case Codes::C6: return quant_tile<Codes::C6, Scales::S2, 32, M>(w, panel, cold, q, y);
        case Codes::C8: return quant_tile<Codes::C8, Scales::D, 128, M>(w, panel, cold, q, y);
        case Codes::T3: return quant_tile<Codes::T3, Scales::S2, 128, M>(w, panel, cold, q, y);
        default:
            if (f.scales == Scales::D) return quant_tile<Codes::T4, Scales::D, 128, M>(w, panel, cold, q, y);
            if (f.scales == Scales::B) return quant_tile<Codes::T4, Scales::B, 128, M>(w, panel, cold, q, y);
            return quant_tile<Codes::T4, Scales::S, 128, M>(w, panel, cold, q, y);
    }
}

using Tile = void (*)(const Matrix&, int, bool, const uint8_t*, Float*);
#if defined(__AVX512F__)
constexpr Tile TILES[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>, tile<8>};
#else
constexpr Tile TILES[] = {tile<1>, tile<2>, tile<3>, tile<4>};
#endif
static_assert(sizeof TILES / sizeof *TILES == TILE_ROWS);

Float times_sigmoid(Float x, Float of) { return x / (splat(1.0f) + exp(zero() - of)); }

// gelu(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is its form by tanh without the loss of digits below 0.
Float apply(Act act, Float x) {
    switch (act) {
        case Act::SILU: return times_sigmoid(x, x);
        case Act::GELU: return times_sigmoid(x, fma(splat(0.044715f) * x * x, x, x) * splat(1.5957691f));
        case Act::SITU: return times_sigmoid(splat(4.0f) * tanh(splat(0.25f) * x), x);
        default: return x;
    }
}

Float gated(Act act, Float gate, Float x) {
    return apply(act, gate) * (act == Act::SITU ? splat(25.0f) * tanh(splat(0.04f) * x) : x);
}

void add_bias(const float* bias, int panel, int count, Float* y) {
    if (!bias) return;
    for (int r = 0; r < count; r++) y[r] = y[r] + load(bias + panel * PANEL);
}

}  // namespace

void product(const Product& p, int row, int count, int p0, int p1) {
    const Tile compute = TILES[count - 1];
    const int outputs = p.weight->rows;
    for (int panel = p0; panel < p1; panel++) {
        Float y[TILE_ROWS], g[TILE_ROWS];
        compute(*p.weight, panel, p.cold, p.input.tile(row), y);
        add_bias(p.bias, panel, count, y);
        if (p.gate) {
            compute(*p.gate, panel, p.cold, p.gate_input.tile(row), g);
            add_bias(p.gate_bias, panel, count, g);
            for (int r = 0; r < count; r++) y[r] = gated(p.gate_act, g[r], y[r]);
        }
        const int lanes = outputs - panel * PANEL < PANEL ? outputs - panel * PANEL : PANEL;
        const int column = panel * PANEL - p.first;
        for (int r = 0; r < count; r++) {
            if (p.act != Act::NONE) y[r] = apply(p.act, y[r]);
            if (p.residual.data) y[r] = load_first(p.residual.row(row + r) + column, lanes) + y[r];
            store_first(p.out.row(row + r) + column, lanes, y[r]);
        }
    }
}

}  // namespace PHASELINE_LEVEL
