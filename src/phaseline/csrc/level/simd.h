// Sixteen float lanes, sixteen 32-bit lanes and sixty-four bytes, the same shape at every instruction-set level,
// so that one kernel source gives the same order of operations everywhere.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace PHASELINE_LEVEL {

constexpr int LANES = 16;

inline float half_to_float(uint16_t h) {
    // Rebias through a multiply, so that subnormal halves come out right; infinities and NaN are kept.
    uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7fff) << 13, bits;
    float f;
    memcpy(&f, &rest, 4);
    f *= 0x1p112f;
    memcpy(&bits, &f, 4);
    if ((h & 0x7c00) == 0x7c00) bits = rest | 0x7f800000;
    bits |= sign;
    memcpy(&f, &bits, 4);
    return f;
}

inline float bf16_to_float(uint16_t h) {
    uint32_t bits = uint32_t(h) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

inline uint16_t float_to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);  // quiet NaN
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);                 // nearest, ties to even
}

#if defined(__AVX512F__)

struct Float { __m512 v; };
struct Int { __m512i v; };
struct Bytes { __m512i v; };

inline Float zero() { return {_mm512_setzero_ps()}; }
inline Float splat(float x) { return {_mm512_set1_ps(x)}; }
inline Float load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Float a) { _mm512_storeu_ps(p, a.v); }
// Past the caches, to a cache line of its own; `settle` before others read it.
inline void stream(float* p, Float a) { _mm512_stream_ps(p, a.v); }
inline void settle() { _mm_sfence(); }
inline Float load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline Float load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
// Thirty-two bf16 as sixteen pairs: the first of each pair, and the second.
inline void load_bf16_pairs(const uint16_t* p, Float& first, Float& second) {
    __m512i v = _mm512_loadu_si512(p);
    first = {_mm512_castsi512_ps(_mm512_slli_epi32(v, 16))};
    second = {_mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(int(0xffff0000))))};
}
inline Float operator+(Float a, Float b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Float operator-(Float a, Float b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Float operator*(Float a, Float b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Float operator/(Float a, Float b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Float fma(Float a, Float b, Float c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Float max(Float a, Float b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Float min(Float a, Float b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Float abs(Float a) { return {_mm512_abs_ps(a.v)}; }
inline Float round(Float a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline bool any_nan(Float a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) != 0; }
// Whether all lanes of both are numbers and at most x.
inline bool all_up_to(Float a, Float b, float x) {
    const __m512 bound = _mm512_set1_ps(x);
    return (_mm512_cmp_ps_mask(a.v, bound, _CMP_NLE_UQ) | _mm512_cmp_ps_mask(b.v, bound, _CMP_NLE_UQ)) == 0;
}
// Lanes below n keep a, the others take b.
inline Float first_lanes(int n, Float a, Float b) { return {_mm512_mask_blend_ps(__mmask16((1u << n) - 1), b.v, a.v)}; }
inline Float load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
inline void store_first(float* p, int n, Float a) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a.v); }
inline Float to_float(Int a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Int to_int(Float a) { return {_mm512_cvtps_epi32(a.v)}; }  // a holds whole numbers
inline Int splat_int(int x) { return {_mm512_set1_epi32(x)}; }
inline Int operator+(Int a, Int b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Int operator-(Int a, Int b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Int operator&(Int a, Int b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int N> Int shift_left(Int a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> Int shift_right(Int a) { return {_mm512_srli_epi32(a.v, N)}; }
inline Float as_float(Int a) { return {_mm512_castsi512_ps(a.v)}; }
inline Int load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline Int load_s8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
inline Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0x0f))}; }
inline Bytes high_nibbles(Bytes a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(0x0f))};
}
// Bits (2i, 2i+1) of each byte.
template <int I> Bytes two_bits(Bytes a) {
    return {_mm512_and_si512(_mm512_srli_epi16(a.v, 2 * I), _mm512_set1_epi8(3))};
}
// The same, moved to bits 4 and 5.
template <int I> Bytes two_bits_at_4(Bytes a) {
    __m512i v = I < 2 ? _mm512_slli_epi16(a.v, I < 2 ? 4 - 2 * I : 0) : _mm512_srli_epi16(a.v, I < 2 ? 0 : 2 * I - 4);
    return {_mm512_and_si512(v, _mm512_set1_epi8(0x30))};
}
inline Bytes operator|(Bytes a, Bytes b) { return {_mm512_or_si512(a.v, b.v)}; }
// Byte i gains X where bit i of the eight bytes at p is set.
template <int X> Bytes or_where(Bytes a, const uint8_t* p) {
    uint64_t bits;
    memcpy(&bits, p, 8);
    return {_mm512_or_si512(a.v, _mm512_maskz_set1_epi8(__mmask64(bits), X))};
}
// Byte i of the table's sixteen (repeated four times) for each i below 16.
inline Bytes look_up(Bytes table, Bytes i) { return {_mm512_shuffle_epi8(table.v, i.v)}; }

#elif defined(__AVX2__)

struct Float { __m256 lo, hi; };
struct Int { __m256i lo, hi; };
struct Bytes { __m256i lo, hi; };

#define PAIR(type, op) type{op(a.lo, b.lo), op(a.hi, b.hi)}
inline Float zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Float splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Float load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Float a) { _mm256_storeu_ps(p, a.lo), _mm256_storeu_ps(p + 8, a.hi); }
inline void stream(float* p, Float a) { _mm256_stream_ps(p, a.lo), _mm256_stream_ps(p + 8, a.hi); }
inline void settle() { _mm_sfence(); }
inline Float load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p + 1))};
}
inline __m256 widen_bf16(__m128i v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)); }
inline Float load_bf16(const uint16_t* p) {
    return {widen_bf16(_mm_loadu_si128((const __m128i*)p)), widen_bf16(_mm_loadu_si128((const __m128i*)p + 1))};
}
inline void load_bf16_pairs(const uint16_t* p, Float& first, Float& second) {
    __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)p + 1);
    __m256i top = _mm256_set1_epi32(int(0xffff0000));
    first = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    second = {_mm256_castsi256_ps(_mm256_and_si256(a, top)), _mm256_castsi256_ps(_mm256_and_si256(b, top))};
}
inline Float operator+(Float a, Float b) { return PAIR(Float, _mm256_add_ps); }
inline Float operator-(Float a, Float b) { return PAIR(Float, _mm256_sub_ps); }
inline Float operator*(Float a, Float b) { return PAIR(Float, _mm256_mul_ps); }
inline Float operator/(Float a, Float b) { return PAIR(Float, _mm256_div_ps); }
inline Float fma(Float a, Float b, Float c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Float max(Float a, Float b) { return PAIR(Float, _mm256_max_ps); }
inline Float min(Float a, Float b) { return PAIR(Float, _mm256_min_ps); }
inline Float abs(Float a) {
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, m), _mm256_and_ps(a.hi, m)};
}
inline Float round(Float a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
}
inline __m256i lanes_below(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline bool any_nan(Float a) {
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))) != 0;
}
inline bool all_up_to(Float a, Float b, float x) {
    const __m256 bound = _mm256_set1_ps(x);
    const auto beyond = [&](Float y) {
        return _mm256_or_ps(_mm256_cmp_ps(y.lo, bound, _CMP_NLE_UQ), _mm256_cmp_ps(y.hi, bound, _CMP_NLE_UQ));
    };
    return _mm256_movemask_ps(_mm256_or_ps(beyond(a), beyond(b))) == 0;
}
inline Float first_lanes(int n, Float a, Float b) {
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lanes_below(n))),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(lanes_below(n - 8)))};
}
inline Float load_first(const float* p, int n) {
    return {_mm256_maskload_ps(p, lanes_below(n)), _mm256_maskload_ps(p + 8, lanes_below(n - 8))};
}
inline void store_first(float* p, int n, Float a) {
    _mm256_maskstore_ps(p, lanes_below(n), a.lo), _mm256_maskstore_ps(p + 8, lanes_below(n - 8), a.hi);
}
inline Float to_float(Int a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline Int to_int(Float a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline Int splat_int(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Int operator+(Int a, Int b) { return PAIR(Int, _mm256_add_epi32); }
inline Int operator-(Int a, Int b) { return PAIR(Int, _mm256_sub_epi32); }
inline Int operator&(Int a, Int b) { return PAIR(Int, _mm256_and_si256); }
template <int N> Int shift_left(Int a) { return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)}; }
template <int N> Int shift_right(Int a) { return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)}; }
inline Float as_float(Int a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
inline Int load_u8(const uint8_t* p) {
    __m128i v = _mm_loadu_si128((const __m128i*)p);
    return {_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}
inline Int load_s8(const int8_t* p) {
    __m128i v = _mm_loadu_si128((const __m128i*)p);
    return {_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}
inline Bytes load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
inline Bytes low_nibbles(Bytes a) {
    __m256i m = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(a.lo, m), _mm256_and_si256(a.hi, m)};
}
inline Bytes high_nibbles(Bytes a) {
    __m256i m = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), m), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), m)};
}
template <int I> Bytes two_bits(Bytes a) {
    __m256i m = _mm256_set1_epi8(3);
    return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 2 * I), m), _mm256_and_si256(_mm256_srli_epi16(a.hi, 2 * I), m)};
}
template <int I> __m256i two_bits_at_4(__m256i a) {
    __m256i v = I < 2 ? _mm256_slli_epi16(a, I < 2 ? 4 - 2 * I : 0) : _mm256_srli_epi16(a, I < 2 ? 0 : 2 * I - 4);
    return _mm256_and_si256(v, _mm256_set1_epi8(0x30));
}
template <int I> Bytes two_bits_at_4(Bytes a) { return {two_bits_at_4<I>(a.lo), two_bits_at_4<I>(a.hi)}; }
inline Bytes operator|(Bytes a, Bytes b) { return PAIR(Bytes, _mm256_or_si256); }
template <int X> __m256i where(const uint8_t* p) {
    int bits;
    memcpy(&bits, p, 4);
    // Each byte gets the bit byte it belongs to, then its own bit alone.
    __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    __m256i own = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, own), own), _mm256_set1_epi8(X));
}
template <int X> Bytes or_where(Bytes a, const uint8_t* p) {
    return {_mm256_or_si256(a.lo, where<X>(p)), _mm256_or_si256(a.hi, where<X>(p + 4))};
}
inline Bytes look_up(Bytes a, Bytes b) { return PAIR(Bytes, _mm256_shuffle_epi8); }
#undef PAIR

#else

struct Float { float v[16]; };
struct Int { int32_t v[16]; };
struct Bytes { uint8_t v[64]; };

template <class T, int N, class F> T each(F f) {
    T r;
    for (int i = 0; i < N; i++) r.v[i] = f(i);
    return r;
}
template <class F> Float floats(F f) { return each<Float, 16>(f); }
template <class F> Int ints(F f) { return each<Int, 16>(f); }
template <class F> Bytes bytes(F f) { return each<Bytes, 64>(f); }

inline Float splat(float x) { return floats([=](int) { return x; }); }
inline Float zero() { return splat(0); }
inline Float load(const float* p) { return floats([=](int i) { return p[i]; }); }
inline void store(float* p, Float a) { memcpy(p, a.v, sizeof a.v); }
inline void stream(float* p, const Float& a) { store(p, a); }
inline void settle() {}
inline Float load_half(const uint16_t* p) { return floats([=](int i) { return half_to_float(p[i]); }); }
inline Float load_bf16(const uint16_t* p) { return floats([=](int i) { return bf16_to_float(p[i]); }); }
inline void load_bf16_pairs(const uint16_t* p, Float& first, Float& second) {
    first = floats([=](int i) { return bf16_to_float(p[2 * i]); });
    second = floats([=](int i) { return bf16_to_float(p[2 * i + 1]); });
}
inline Float operator+(const Float& a, const Float& b) { return floats([&](int i) { return a.v[i] + b.v[i]; }); }
inline Float operator-(const Float& a, const Float& b) { return floats([&](int i) { return a.v[i] - b.v[i]; }); }
inline Float operator*(const Float& a, const Float& b) { return floats([&](int i) { return a.v[i] * b.v[i]; }); }
inline Float operator/(const Float& a, const Float& b) { return floats([&](int i) { return a.v[i] / b.v[i]; }); }
// Two roundings: the baseline has no fused multiply-add, and the library's emulation is far slower.
inline Float fma(const Float& a, const Float& b, const Float& c) {
    return floats([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Float max(const Float& a, const Float& b) { return floats([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline Float min(const Float& a, const Float& b) { return floats([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline Float abs(const Float& a) { return floats([&](int i) { return __builtin_fabsf(a.v[i]); }); }
inline Float round(const Float& a) {
    // Adding and taking away 1.5 * 2^23 rounds to nearest even for |a| < 2^22, all that the kernels need.
    return floats([&](int i) {
        volatile float t = a.v[i] + 12582912.0f;
        return t - 12582912.0f;
    });
}
inline bool any_nan(const Float& a) {
    bool any = false;
    for (float v : a.v) any = any || v != v;
    return any;
}
inline bool all_up_to(const Float& a, const Float& b, float x) {
    bool all = true;
    for (int i = 0; i < LANES; i++) all = all && a.v[i] <= x && b.v[i] <= x;
    return all;
}
inline Float first_lanes(int n, const Float& a, const Float& b) { return floats([&](int i) { return i < n ? a.v[i] : b.v[i]; }); }
inline Float load_first(const float* p, int n) { return floats([=](int i) { return i < n ? p[i] : 0.0f; }); }
inline void store_first(float* p, int n, const Float& a) {
    for (int i = 0; i < 16 && i < n; i++) p[i] = a.v[i];
}
inline Float to_float(const Int& a) { return floats([&](int i) { return float(a.v[i]); }); }
inline Int to_int(const Float& a) { return ints([&](int i) { return int32_t(a.v[i]); }); }
inline Int splat_int(int x) { return ints([=](int) { return x; }); }
inline Int operator+(const Int& a, const Int& b) { return ints([&](int i) { return a.v[i] + b.v[i]; }); }
inline Int operator-(const Int& a, const Int& b) { return ints([&](int i) { return a.v[i] - b.v[i]; }); }
inline Int operator&(const Int& a, const Int& b) { return ints([&](int i) { return a.v[i] & b.v[i]; }); }
template <int N> Int shift_right(const Int& a) { return ints([&](int i) { return int32_t(uint32_t(a.v[i]) >> N); }); }
template <int N> Int shift_left(const Int& a) { return ints([&](int i) { return int32_t(uint32_t(a.v[i]) << N); }); }
inline Float as_float(const Int& a) {
    Float r;
    memcpy(r.v, a.v, sizeof r.v);
    return r;
}
inline Int load_u8(const uint8_t* p) { return ints([=](int i) { return int32_t(p[i]); }); }
inline Int load_s8(const int8_t* p) { return ints([=](int i) { return int32_t(p[i]); }); }
inline Bytes load_bytes(const uint8_t* p) { return bytes([=](int i) { return p[i]; }); }
inline Bytes low_nibbles(const Bytes& a) { return bytes([&](int i) { return uint8_t(a.v[i] & 15); }); }
inline Bytes high_nibbles(const Bytes& a) { return bytes([&](int i) { return uint8_t(a.v[i] >> 4); }); }
template <int I> Bytes two_bits(const Bytes& a) {
    return bytes([&](int i) { return uint8_t(a.v[i] >> (2 * I) & 3); });
}
template <int I> Bytes two_bits_at_4(const Bytes& a) {
    return bytes([&](int i) { return uint8_t(((a.v[i] >> (2 * I)) & 3) << 4); });
}
inline Bytes operator|(const Bytes& a, const Bytes& b) { return bytes([&](int i) { return uint8_t(a.v[i] | b.v[i]); }); }
template <int X> Bytes or_where(const Bytes& a, const uint8_t* p) {
    return bytes([&](int i) { return uint8_t(a.v[i] | (p[i / 8] >> (i % 8) & 1) * X); });
}
inline Bytes look_up(const Bytes& table, const Bytes& a) { return bytes([&](int i) { return table.v[a.v[i]]; }); }

#endif

// Sum and maximum over the lanes, in one fixed tree (halves, quarters ...) whatever the level.
#if defined(__AVX2__)
template <class F> float fold(__m256 a, F op) {
    __m128 v = op(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    v = op(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(op(v, _mm_shuffle_ps(v, v, 1)));
}
#if defined(__AVX512F__)
inline __m256 low(Float a) { return _mm512_castps512_ps256(a.v); }
inline __m256 high(Float a) { return _mm512_extractf32x8_ps(a.v, 1); }
#else
inline __m256 low(Float a) { return a.lo; }
inline __m256 high(Float a) { return a.hi; }
#endif
inline float sum(Float a) {
    return fold(_mm256_add_ps(low(a), high(a)), [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
}
inline float largest(Float a) {
    return fold(_mm256_max_ps(low(a), high(a)), [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
}
// Of integers, which wraps.
inline uint32_t sum(Int a) {
#if defined(__AVX512F__)
    const __m256i both = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
#else
    const __m256i both = _mm256_add_epi32(a.lo, a.hi);
#endif
    __m128i v = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    v = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 1));
    return uint32_t(_mm_cvtsi128_si32(v));
}
#else
template <class F> float fold(Float a, F op) {
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) a.v[i] = op(a.v[i], a.v[i + n]);
    return a.v[0];
}
inline float sum(const Float& a) {
    return fold(a, [](float x, float y) { return x + y; });
}
inline float largest(const Float& a) {
    return fold(a, [](float x, float y) { return x > y ? x : y; });
}
inline uint32_t sum(const Int& a) {
    uint32_t total = 0;
    for (int32_t x : a.v) total += uint32_t(x);
    return total;
}
#endif

// As many of the n floats at p as there are lanes, zeros behind them.
inline Float load_up_to(const float* p, int n) { return n >= LANES ? load(p) : load_first(p, n); }

}  // namespace PHASELINE_LEVEL
