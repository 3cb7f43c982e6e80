// What the machine can do at most with the instructions the kernels use: nothing but that, from registers.
#include "amx/tile_dot.h"
#include "dot.h"
#include "fetch.h"
#include "table.h"

namespace PHASELINE_LEVEL {

namespace {

// Keeps a vector alive in its register without reading or writing memory.
#if defined(__AVX512F__)
inline void pin(Float& a) { asm volatile("" : "+v"(a.v)); }
inline void pin(__m512i& a) { asm volatile("" : "+v"(a)); }
constexpr int CHAINS = 12;
#elif defined(__AVX2__)
inline void pin(Float& a) { asm volatile("" : "+x"(a.lo), "+x"(a.hi)); }
inline void pin(__m256i& a) { asm volatile("" : "+x"(a)); }
constexpr int CHAINS = 5;  // two registers each
#else
inline void pin(Float& a) { asm volatile("" : : "r"(&a) : "memory"); }
inline void pin(Int& a) { asm volatile("" : : "r"(&a) : "memory"); }
constexpr int CHAINS = 4;
#endif

}  // namespace

double burn_float(long n) {
    Float acc[CHAINS];
    for (auto& a : acc) a = splat(1.0f);
    const Float x = splat(0.5f);
    for (long i = 0; i < n; i++) {
#pragma GCC unroll 12
        for (auto& a : acc) {
            a = fma(a, x, x);
            pin(a);
        }
    }
    return double(n) * CHAINS * LANES * 2;
}

#if defined(__AMX_INT8__)

// Whole tiles, two products of bytes for each of a code with a fifteen-bit activation.
double burn_quant(long n) {
    constexpr int CHAINS_OF_TILES = 4, PRODUCTS = 16 * 16 * 64;
    open_tiles({.row_bytes = {64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16}});
    asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3\n\ttilezero %tmm4\n\ttilezero %tmm5");
    for (long i = 0; i < n; i++)
        asm volatile("tdpbsud %tmm5, %tmm4, %tmm0\n\ttdpbsud %tmm5, %tmm4, %tmm1\n\t"
                     "tdpbsud %tmm5, %tmm4, %tmm2\n\ttdpbsud %tmm5, %tmm4, %tmm3");
    close_tiles();
    return double(n) * CHAINS_OF_TILES * PRODUCTS * 2 / 2;
}

#else

// One multiply-add of a code with a fifteen-bit activation counts as two operations, however many instructions it takes.
double burn_quant(long n) {
    constexpr int ROWS = 4;
    QuantBlock a[ROWS] = {};
    for (auto& block : a) memset(block.words, 1, sizeof block.words);
    uint8_t raw[64];
    memset(raw, 3, sizeof raw);
    Bytes w = load_bytes(raw);
    Dot<ROWS, 0, 2> dot(a);
    for (long i = 0; i < n; i++) {
        dot.step(0, w, a);
#if defined(__AVX2__)
        for (int r = 0; r < ROWS; r++) pin(dot.hi[r]), pin(dot.lo[r]);
#else
        for (int r = 0; r < ROWS; r++) pin(dot.acc[r]);
#endif
    }
    return double(n) * ROWS * 64 * 2;
}

#endif

double read(const uint8_t* data, size_t bytes) {
    Float acc[4] = {zero(), zero(), zero(), zero()};
    const size_t whole = bytes / 256 * 256;
    for (size_t i = 0; i < whole; i += 256) {
        fetch_ahead(data + i, 256);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) acc[j] = max(acc[j], load(reinterpret_cast<const float*>(data + i) + j * LANES));
    }
    for (auto& a : acc) pin(a);
    return double(whole);
}

}  // namespace PHASELINE_LEVEL
