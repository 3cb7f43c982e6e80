// Matrix products. The sum over K runs in one fixed order for every row, whatever the number of rows: a row's bits do
// not depend on its neighbours, on the chunk or on the thread.
#include "decode.h"
#include "dot.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

constexpr size_t PREFETCH = 4096;  // bytes ahead in a panel, for few rows: the hardware stops at every small page

// Quantised panel times a tile of M rows: y[r] = sum over blocks, in order.
template <Codes C, Scales S, int OFFSET, int M>
void quant_tile(const Matrix& w, int panel, const QuantBlock* a, Float* y) {
    const uint8_t* scales = w.scales(panel);
    const uint8_t* codes = w.codes(panel);
    Float acc[M];
    for (int r = 0; r < M; r++) acc[r] = zero();
    for (int b = 0; b < w.blocks; b++, codes += code_bytes(C), a += M) {
        if constexpr (M <= 2)
            for (size_t line = 0; line < code_bytes(C); line += 64) __builtin_prefetch(codes + PREFETCH + line);
        const Scale s = scale_at<S>(scales, b);
        Dot<M> first;
        first.step(0, codes_at<C, 0>(codes), a);
        first.step(1, codes_at<C, 1>(codes), a);
        first.step(2, codes_at<C, 2>(codes), a);
        first.step(3, codes_at<C, 3>(codes), a);
        if constexpr (S == Scales::K6) {
#pragma GCC unroll 8
            for (int r = 0; r < M; r++) {
                const Int v = first.value(r) - splat_int(OFFSET * a[r].isum[0]);
                acc[r] = fma(to_float(v), s.d * splat(a[r].scale), acc[r]);
            }
            first = Dot<M>();
        }
        first.step(4, codes_at<C, 4>(codes), a);
        first.step(5, codes_at<C, 5>(codes), a);
        first.step(6, codes_at<C, 6>(codes), a);
        first.step(7, codes_at<C, 7>(codes), a);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            Int v = first.value(r);
            Float d = s.d;
            if constexpr (S == Scales::K6) {
                v = v - splat_int(OFFSET * a[r].isum[1]);
                d = s.m;
            } else if constexpr (OFFSET != 0) {
                v = v - splat_int(OFFSET * (a[r].isum[0] + a[r].isum[1]));
            }
            acc[r] = fma(to_float(v), d * splat(a[r].scale), acc[r]);
            if constexpr (S == Scales::DM || S == Scales::K) acc[r] = fma(s.m, splat(a[r].sum), acc[r]);
        }
    }
    for (int r = 0; r < M; r++) y[r] = acc[r];
}

template <Codes C> Float plain_lanes(const uint8_t* p) {
    if constexpr (C == Codes::F32) return load(reinterpret_cast<const float*>(p));
    else if constexpr (C == Codes::F16) return load_half(reinterpret_cast<const uint16_t*>(p));
    else return load_bf16(reinterpret_cast<const uint16_t*>(p));
}

template <Codes C, int M> void plain_tile(const Matrix& w, int panel, const float* a, Float* y) {
    const uint8_t* codes = w.codes(panel);
    Float acc[M];
    for (int r = 0; r < M; r++) acc[r] = zero();
    for (int k = 0; k < w.cols; k++, codes += code_bytes(C), a += M) {
        const Float lanes = plain_lanes<C>(codes);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) acc[r] = fma(splat(a[r]), lanes, acc[r]);
    }
    for (int r = 0; r < M; r++) y[r] = acc[r];
}

template <int M> void tile(const Matrix& w, int panel, const uint8_t* input, Float* y) {
    const Format& f = w.format;
    const auto* q = reinterpret_cast<const QuantBlock*>(input);
    const auto* x = reinterpret_cast<const float*>(input);
    if (f.codes == Codes::F32) return plain_tile<Codes::F32, M>(w, panel, x, y);
    if (f.codes == Codes::F16) return plain_tile<Codes::F16, M>(w, panel, x, y);
    if (f.codes == Codes::BF16) return plain_tile<Codes::BF16, M>(w, panel, x, y);
    switch (f.scales) {
        case Scales::D:
            if (f.codes == Codes::C4) return quant_tile<Codes::C4, Scales::D, 8, M>(w, panel, q, y);
            if (f.codes == Codes::C5) return quant_tile<Codes::C5, Scales::D, 16, M>(w, panel, q, y);
            return quant_tile<Codes::C8, Scales::D, 128, M>(w, panel, q, y);
        case Scales::DM:
            if (f.codes == Codes::C4) return quant_tile<Codes::C4, Scales::DM, 0, M>(w, panel, q, y);
            return quant_tile<Codes::C5, Scales::DM, 0, M>(w, panel, q, y);
        case Scales::K:
            if (f.codes == Codes::C4) return quant_tile<Codes::C4, Scales::K, 0, M>(w, panel, q, y);
            return quant_tile<Codes::C5, Scales::K, 0, M>(w, panel, q, y);
        default: return quant_tile<Codes::C6, Scales::K6, 32, M>(w, panel, q, y);
    }
}

using Tile = void (*)(const Matrix&, int, const uint8_t*, Float*);
#if defined(__AVX512F__)
constexpr Tile TILES[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>, tile<8>};
#else
constexpr Tile TILES[] = {tile<1>, tile<2>, tile<3>, tile<4>};
#endif
static_assert(sizeof TILES / sizeof *TILES == TILE_ROWS);

Float silu(Float x) { return x / (splat(1.0f) + exp(zero() - x)); }

}  // namespace

void product(const Product& p, int row, int count, int p0, int p1) {
    const Tile compute = TILES[count - 1];
    const int outputs = p.weight->rows;
    for (int panel = p0; panel < p1; panel++) {
        Float y[TILE_ROWS], g[TILE_ROWS];
        compute(*p.weight, panel, p.input.tile(row), y);
        if (p.gate) {
            compute(*p.gate, panel, p.gate_input.tile(row), g);
            for (int r = 0; r < count; r++) y[r] = silu(g[r]) * y[r];
        }
        const int lanes = outputs - panel * PANEL < PANEL ? outputs - panel * PANEL : PANEL;
        for (int r = 0; r < count; r++) {
            if (p.residual.data) y[r] = load_first(p.residual.row(row + r) + panel * PANEL, lanes) + y[r];
            store_first(p.out.row(row + r) + panel * PANEL, lanes, y[r]);
        }
    }
}

}  // namespace PHASELINE_LEVEL
