// Integer dot products: sixteen rows of codes against up to eight rows of activations, four k at a time. Exact.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace PHASELINE_LEVEL {

using phaseline::QuantBlock;

// Of a dot product over a PART of a block, its first or its second half, or all of it (2), with codes that lie OFFSET above
// their values: what they count too much.
template <int OFFSET, int PART> Int offset_sum(const QuantBlock& a) {
    if constexpr (OFFSET == 0) return splat_int(0);
    else return shift_left<__builtin_ctz(OFFSET)>(splat_int(a.less[PART]));
}

#if defined(__AVX512F__)

inline __m512i splat_word(const int8_t* p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

template <int M, int OFFSET, int PART> struct Dot {
    __m512i hi[M], lo[M];
    explicit Dot(const QuantBlock* a) {
        for (int r = 0; r < M; r++) {
            hi[r] = lo[r] = _mm512_setzero_si512();
            if constexpr (OFFSET == 128) hi[r] = splat_int(a[r].less[PART]).v;
            else if constexpr (OFFSET != 0) lo[r] = offset_sum<OFFSET, PART>(a[r]).v;
        }
    }
    void step(int j, Bytes w, const QuantBlock* a) {
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            hi[r] = _mm512_dpbusd_epi32(hi[r], w.v, splat_word(a[r].words + 4 * j));
            lo[r] = _mm512_dpbusd_epi32(lo[r], w.v, splat_word(a[r].words + 32 + 4 * j));
        }
    }
    Int value(int r) const { return Int{_mm512_slli_epi32(hi[r], 7)} + Int{lo[r]}; }
};

inline void store_words(Int a, Int b, int8_t* words) {
    const auto put = [](Int q, int8_t* p) {
        const __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(q.v, _mm512_set1_epi32(64)), 7);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(hi));
        const __m512i lo = _mm512_sub_epi32(q.v, _mm512_slli_epi32(hi, 7));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 32), _mm512_cvtepi32_epi8(lo));
    };
    put(a, words);
    put(b, words + LANES);
}

#else

inline void store_words(Int a, Int b, int8_t* words) {
    int32_t q[32];
    memcpy(q, &a, sizeof a);
    memcpy(q + LANES, &b, sizeof b);
    int16_t w[32];
    for (int j = 0; j < 32; j += 4) {
        w[j] = int16_t(q[j]), w[j + 1] = int16_t(q[j + 2]);
        w[j + 2] = int16_t(q[j + 1]), w[j + 3] = int16_t(q[j + 3]);
    }
    memcpy(words, w, sizeof w);
}

#if defined(__AVX2__)

inline __m256i splat_word(const int8_t* p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

template <int M, int OFFSET, int PART> struct Dot {
    __m256i lo[M], hi[M];  // lanes 0-7 and 8-15
    explicit Dot(const QuantBlock* a) {
        for (int r = 0; r < M; r++) lo[r] = hi[r] = offset_sum<OFFSET, PART>(a[r]).lo;
    }
    void step(int j, Bytes w, const QuantBlock* a) {
        const __m256i m = _mm256_set1_epi16(0xff);
        const __m256i even_lo = _mm256_and_si256(w.lo, m), even_hi = _mm256_and_si256(w.hi, m);
        const __m256i odd_lo = _mm256_srli_epi16(w.lo, 8), odd_hi = _mm256_srli_epi16(w.hi, 8);
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const __m256i even = splat_word(a[r].words + 8 * j), odd = splat_word(a[r].words + 8 * j + 4);
            lo[r] = _mm256_add_epi32(lo[r], _mm256_madd_epi16(even_lo, even));
            hi[r] = _mm256_add_epi32(hi[r], _mm256_madd_epi16(even_hi, even));
            lo[r] = _mm256_add_epi32(lo[r], _mm256_madd_epi16(odd_lo, odd));
            hi[r] = _mm256_add_epi32(hi[r], _mm256_madd_epi16(odd_hi, odd));
        }
    }
    Int value(int r) const { return {lo[r], hi[r]}; }
};

#else

template <int M, int OFFSET, int PART> struct Dot {
    Int acc[M];
    explicit Dot(const QuantBlock* a) {
        for (int r = 0; r < M; r++) acc[r] = offset_sum<OFFSET, PART>(a[r]);
    }
    void step(int j, const Bytes& w, const QuantBlock* a) {
        for (int r = 0; r < M; r++) {
            int16_t q[4];
            memcpy(q, a[r].words + 8 * j, 8);
            for (int i = 0; i < 16; i++)
                acc[r].v[i] += w.v[4 * i] * q[0] + w.v[4 * i + 1] * q[2] + w.v[4 * i + 2] * q[1] + w.v[4 * i + 3] * q[3];
        }
    }
    Int value(int r) const { return acc[r]; }
};

#endif
#endif

}  // namespace PHASELINE_LEVEL
