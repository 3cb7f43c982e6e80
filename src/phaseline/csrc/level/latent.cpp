// Attention over latent pages: one row per token, which every head reads as its key and, in its first `rank` columns,
// as its value. Lanes lie along the row for both, so that a row is stored once and streamed once for all heads.
#include "softmax.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

constexpr int STRIP = LatentLayer::STRIP;
static_assert(STRIP == 2 * LANES);

// Columns d .. d + 31 of a stored row, as two vectors or one half alone.
struct Bf16 {
    using Element = uint16_t;
    static void strip(const Element* p, Float& a, Float& b) { load_bf16_pairs(p, a, b); }
    template <int HALF> static Float half(const Element* p) {
        Float f[2];
        load_bf16_pairs(p, f[0], f[1]);
        return f[HALF];
    }
};

struct F32 {
    using Element = float;
    static void strip(const Element* p, Float& a, Float& b) { a = load(p), b = load(p + LANES); }
    template <int HALF> static Float half(const Element* p) { return load(p + HALF * LANES); }
};

#if defined(__AVX512F__)
constexpr int TOKENS = 2;  // tokens whose scores a pass keeps in registers
constexpr bool WHOLE_STRIPS = true;
#else
constexpr int TOKENS = 1;
constexpr bool WHOLE_STRIPS = false;
#endif

// scores[r][token] = q[r] . row[token] for the first `tokens` rows of a page, rounded up to TOKENS.
template <class T, int M>
void page_scores(const typename T::Element* rows, const float* q, int tokens, int width, float* scores) {
    for (int t = 0; t < tokens; t += TOKENS) {
        Float acc[M][TOKENS];
        for (auto& row : acc)
            for (auto& a : row) a = zero();
        for (int d = 0; d < width; d += STRIP) {
            Float a[TOKENS], b[TOKENS];
            for (int n = 0; n < TOKENS; n++) T::strip(rows + (t + n) * width + d, a[n], b[n]);
#pragma GCC unroll 8
            for (int r = 0; r < M; r++) {
                const Float x = load(q + r * width + d), y = load(q + r * width + d + LANES);
#pragma GCC unroll 2
                for (int n = 0; n < TOKENS; n++) acc[r][n] = fma(y, b[n], fma(x, a[n], acc[r][n]));
            }
        }
        for (int r = 0; r < M; r++)
            for (int n = 0; n < TOKENS; n++) scores[r * PAGE + t + n] = sum(acc[r][n]);
    }
}

// out[r] = out[r] * shrink[r] + sum over tokens of p[r][token] * row[token], for columns d .. d + 31.
template <class T, int M>
void add_strip(const typename T::Element* rows, const float* p, const float* shrink, int tokens, int width, float* out, int rank) {
    Float acc[M][2];
    for (int r = 0; r < M; r++)
        for (int h = 0; h < 2; h++) acc[r][h] = load(out + r * rank + h * LANES) * splat(shrink[r]);
    for (int t = 0; t < tokens; t++) {
        Float a, b;
        T::strip(rows + t * width, a, b);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const Float weight = splat(p[r * PAGE + t]);
            acc[r][0] = fma(weight, a, acc[r][0]);
            acc[r][1] = fma(weight, b, acc[r][1]);
        }
    }
    for (int r = 0; r < M; r++)
        for (int h = 0; h < 2; h++) store(out + r * rank + h * LANES, acc[r][h]);
}

// The same for one half of the strip, where registers are few.
template <class T, int M, int HALF>
void add_half(const typename T::Element* rows, const float* p, const float* shrink, int tokens, int width, float* out, int rank) {
    Float acc[M];
    for (int r = 0; r < M; r++) acc[r] = load(out + r * rank + HALF * LANES) * splat(shrink[r]);
    for (int t = 0; t < tokens; t++) {
        const Float a = T::template half<HALF>(rows + t * width);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) acc[r] = fma(splat(p[r * PAGE + t]), a, acc[r]);
    }
    for (int r = 0; r < M; r++) store(out + r * rank + HALF * LANES, acc[r]);
}

template <class T, int M>
void attend_tile(const LatentLayer& kv, const QueryTile& t, int split, Partial& into, float* scratch) {
    const int width = kv.padded_width(), rank = kv.padded_rank();
    float* q = scratch;               // [M][width]
    float* scores = q + M * width;    // [M][PAGE]
    int limit[M], last = 0;           // positions each query reads
    Float total[M];                   // of each query's weights
    for (int r = 0; r < M; r++) {
        const int i = t.first + r, row = i / t.group;
        const float* source = t.q.row(t.first_row + row) + i % t.group * kv.width;
        for (int d = 0; d < kv.width; d++) q[r * width + d] = source[d] * t.scale;
        for (int d = kv.width; d < width; d++) q[r * width + d] = 0;
        limit[r] = t.start + row + 1;
        if (limit[r] > last) last = limit[r];
        into.largest[r] = NOTHING;
        total[r] = zero();
        for (int d = 0; d < rank; d += LANES) store(into.out + r * rank + d, zero());
    }
    const int end = last < (split + 1) * SPLIT ? last : (split + 1) * SPLIT;
    for (int at = split * SPLIT; at < end; at += PAGE) {
        const int tokens = end - at < PAGE ? end - at : PAGE;
        const auto* rows = reinterpret_cast<const typename T::Element*>(kv.page(t.pages[at / PAGE]));
        page_scores<T, M>(rows, q, tokens, width, scores);
        float shrink[M];
        for (int r = 0; r < M; r++) shrink[r] = weigh_page(scores + r * PAGE, 0, limit[r] - at, into.largest[r], total[r]);
        for (int d = 0; d < rank; d += STRIP) {
            if constexpr (WHOLE_STRIPS) {
                add_strip<T, M>(rows + d, scores, shrink, tokens, width, into.out + d, rank);
            } else {
                add_half<T, M, 0>(rows + d, scores, shrink, tokens, width, into.out + d, rank);
                add_half<T, M, 1>(rows + d, scores, shrink, tokens, width, into.out + d, rank);
            }
        }
    }
    for (int r = 0; r < M; r++) into.sum[r] = sum(total[r]);
}

using Attend = void (*)(const LatentLayer&, const QueryTile&, int, Partial&, float*);
constexpr Attend ATTEND[2][TILE_ROWS] = {{EACH_COUNT(attend_tile, Bf16)}, {EACH_COUNT(attend_tile, F32)}};

}  // namespace

void attend_latent(const LatentLayer& kv, const QueryTile& t, int split, Partial& into, float* scratch) {
    ATTEND[kv.type == KvType::F32][t.count - 1](kv, t, split, into, scratch);
}

void store_latent(const LatentLayer& kv, const float* x, int page, int offset) {
    const int width = kv.padded_width();
    uint8_t* base = kv.page(page);
    for (int d = 0; d < width; d++) {
        const float value = d < kv.width ? x[d] : 0.0f;  // padding is read, times zero: it must be a number
        if (kv.type == KvType::F32) {
            reinterpret_cast<float*>(base)[offset * width + d] = value;
        } else {
            const int in = d % STRIP;
            reinterpret_cast<uint16_t*>(base)[offset * width + d - in + in % LANES * 2 + in / LANES] = float_to_bf16(value);
        }
    }
}

}  // namespace PHASELINE_LEVEL
