#include "formats.h"

#include <cstring>

namespace phaseline {

namespace {

template <class T> T at(const uint8_t* p) {
    T v;
    memcpy(&v, p, sizeof v);
    return v;
}

void nibbles(const uint8_t* q, uint8_t* code) {  // all low ones, then all high
    for (int i = 0; i < 16; i++) {
        code[i] = q[i] & 15;
        code[i + 16] = q[i] >> 4;
    }
}

constexpr int NO_SHIFT = 8 << 4;  // of a T scale: x - 8 / 8 is -1, 0 or 1

template <bool FIVE, bool MINIMUM> void unpack_simple(const uint8_t* p, int, const uint8_t*, Unpacked& u) {
    u.d = at<uint16_t>(p);
    p += 2;
    if (MINIMUM) u.m = at<uint16_t>(p), p += 2;
    nibbles(p + (FIVE ? 4 : 0), u.code);
    if (FIVE)
        for (int i = 0; i < 32; i++) u.code[i] |= uint8_t((at<uint32_t>(p) >> i & 1) << 4);
}

void unpack_q8_0(const uint8_t* p, int, const uint8_t*, Unpacked& u) {
    u.d = at<uint16_t>(p);
    for (int i = 0; i < 32; i++) u.code[i] = uint8_t(p[2 + i] + 128);  // signed byte to offset 128
}

// 64 bytes of two bits: each half of 128 elements is four runs of 32, the first in the lowest bits.
void two_bits(const uint8_t* q, int j, uint8_t* code) {
    for (int i = 0; i < 32; i++) code[i] = q[j / 4 * 32 + i] >> (j % 4 * 2) & 3;
}

void unpack_q2_k(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {  // scales[16], q[64], half d, half m
    memcpy(u.s, p + 2 * j, 2);
    two_bits(p + 16, j, u.code);
    u.d = at<uint16_t>(p + 80);
    u.m = at<uint16_t>(p + 82);
}

// high[32], q[64], scales[12], half d. Of sixteen scales the low nibbles come first, in eight bytes, then the high pairs.
void unpack_q3_k(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {
    two_bits(p + 32, j, u.code);
    for (int i = 0; i < 32; i++) u.code[i] |= uint8_t((p[i] >> j & 1) << 2);
    for (int i = 0; i < 2; i++) {
        const int g = 2 * j + i, low = p[96 + g % 8] >> (g / 8 * 4) & 15, high = p[104 + g % 4] >> (g / 4 * 2) & 3;
        u.s[i] = uint8_t((low | high << 4) - 32);
    }
    u.d = at<uint16_t>(p + 108);
}

// The 6-bit scale and minimum of block j of a Q4_K or Q5_K super-block: the first four blocks hold theirs in the low
// six bits of bytes j and j + 4, the last four in nibbles of byte j + 4 topped up by the spare bits of the others.
void k_scales(const uint8_t* q, int j, uint8_t s[2]) {
    if (j < 4) {
        s[0] = q[j] & 63;
        s[1] = q[j + 4] & 63;
    } else {
        s[0] = uint8_t((q[j + 4] & 15) | (q[j - 4] >> 6) << 4);
        s[1] = uint8_t((q[j + 4] >> 4) | (q[j] >> 6) << 4);
    }
}

template <bool FIVE> void unpack_k(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {
    u.d = at<uint16_t>(p);
    u.m = at<uint16_t>(p + 2);
    k_scales(p + 4, j, u.s);
    const uint8_t* q = p + 16 + (FIVE ? 32 : 0) + j / 2 * 32;
    for (int i = 0; i < 32; i++) u.code[i] = (j % 2 ? q[i] >> 4 : q[i] & 15);
    if (FIVE)
        for (int i = 0; i < 32; i++) u.code[i] |= uint8_t((p[16 + i] >> j & 1) << 4);
}

// low[128], high[64], s8 scales[16], half d; each half of 128 elements is four runs of 32.
void unpack_q6_k(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {
    const int half = j / 4, run = j % 4;
    const uint8_t* low = p + half * 64 + (run % 2) * 32;
    const uint8_t* high = p + 128 + half * 32;
    for (int i = 0; i < 32; i++)
        u.code[i] = uint8_t((run < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * run) & 3) << 4);
    memcpy(u.s, p + 192 + half * 8 + run * 2, 2);
    u.d = at<uint16_t>(p + 208);
}

void unpack_iq4_nl(const uint8_t* p, int, const uint8_t*, Unpacked& u) {
    u.d = at<uint16_t>(p);
    nibbles(p + 2, u.code);
}

// half d, high pairs of the scales in 16 bits, low nibbles in four bytes, 16 bytes of nibbles per block
void unpack_iq4_xs(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {
    u.d = at<uint16_t>(p);
    u.s[0] = uint8_t(((p[4 + j / 2] >> (j % 2 * 4) & 15) | (at<uint16_t>(p + 2) >> (2 * j) & 3) << 4) - 32);
    nibbles(p + 8 + 16 * j, u.code);
}

void unpack_mxfp4(const uint8_t* p, int, const uint8_t*, Unpacked& u) {
    // 2^(e - 128), half of what e stands for: the values are doubled. The two least have no leading one in a bf16.
    u.d = uint16_t(p[0] < 2 ? 0x20 << p[0] : (p[0] - 1) << 7);
    nibbles(p + 1, u.code);
}

void unpack_tq2_0(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {  // q[64], half d
    two_bits(p, j, u.code);
    u.d = at<uint16_t>(p + 64);
    u.s[0] = NO_SHIFT | 1;
}

// Five digits of base three in each of q[32] and then q[16], four in each of q[4]: all first digits, then all second
// ones. A byte times a power of three, modulo 256, is what follows the digits before; times three it shows the next.
void unpack_tq1_0(const uint8_t* p, int j, const uint8_t*, Unpacked& u) {
    constexpr uint8_t POWERS[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < BLOCK; i++) {
        const int k = j * BLOCK + i;
        const int byte = k < 160 ? k % 32 : k < 240 ? 32 + k % 16 : 48 + k % 4;
        const int digit = k < 160 ? k / 32 : k < 240 ? (k - 160) / 16 : (k - 240) / 4;
        u.code[i] = uint8_t(uint8_t(p[byte] * POWERS[digit]) * 3 >> 8);
    }
    u.d = at<uint16_t>(p + 52);
    u.s[0] = NO_SHIFT | 1;
}

// Eight (four) codes: the digits of a codebook's entry, above them a bit for minus.
template <int WIDTH, int MINUS> void entry(const uint8_t* codebook, int index, int signs, uint8_t* code) {
    for (int i = 0; i < WIDTH; i++) code[i] = uint8_t(codebook[index * WIDTH + i] | (signs >> i & 1) * MINUS);
}

int even_signs(uint32_t seven) {  // the eighth makes the number of minuses even
    return int(seven & 127) | __builtin_parity(seven & 127) << 7;
}

// half d; per block four indices, then four times seven signs and the scale in 32 bits
void unpack_iq2_xxs(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    const uint8_t* q = p + 2 + 8 * j;
    const uint32_t rest = at<uint32_t>(q + 4);
    for (int l = 0; l < 4; l++) entry<8, 4>(codebook, q[l], even_signs(rest >> (7 * l)), u.code + 8 * l);
    u.d = at<uint16_t>(p);
    u.s[0] = u.s[1] = uint8_t(2 * (rest >> 28) + 1);
}

void nibble_scales(uint8_t pair, Unpacked& u) {  // two of 2s + 1
    u.s[0] = uint8_t(2 * (pair & 15) + 1);
    u.s[1] = uint8_t(2 * (pair >> 4) + 1);
}

// half d, 32 words of nine bits of index and seven signs, pairs of scales
void unpack_iq2_xs(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    for (int l = 0; l < 4; l++) {
        const uint16_t word = at<uint16_t>(p + 2 + 8 * j + 2 * l);
        entry<8, 4>(codebook, word & 511, even_signs(word >> 9), u.code + 8 * l);
    }
    u.d = at<uint16_t>(p);
    nibble_scales(p[66 + j], u);
}

// half d, low[32], signs[32], high pairs[8], pairs of scales[8]
void unpack_iq2_s(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    for (int l = 0; l < 4; l++) {
        const int index = p[2 + 4 * j + l] | (p[66 + j] >> (2 * l) & 3) << 8;
        entry<8, 4>(codebook, index, p[34 + 4 * j + l], u.code + 8 * l);
    }
    u.d = at<uint16_t>(p);
    nibble_scales(p[74 + j], u);
}

// half d, 64 indices, per block four times seven signs and the scale in 32 bits
void unpack_iq3_xxs(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    const uint32_t rest = at<uint32_t>(p + 66 + 4 * j);
    for (int l = 0; l < 8; l++)
        entry<4, 8>(codebook, p[2 + 8 * j + l], even_signs(rest >> (l / 2 * 7)) >> (l % 2 * 4), u.code + 4 * l);
    u.d = at<uint16_t>(p);
    u.s[0] = uint8_t(2 * (rest >> 28) + 1);
}

// half d, low[64], high bits[8], signs[32], pairs of scales[4]
void unpack_iq3_s(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    for (int l = 0; l < 8; l++) {
        const int index = p[2 + 8 * j + l] | (p[66 + j] >> l & 1) << 8;
        entry<4, 8>(codebook, index, p[74 + 4 * j + l / 2] >> (l % 2 * 4), u.code + 4 * l);
    }
    u.d = at<uint16_t>(p);
    u.s[0] = uint8_t(2 * (p[106 + j / 2] >> (j % 2 * 4) & 15) + 1);
}

// half d, low[32], per block four times three high bits, the scale and the sign of the shift in 16 bits
void unpack_iq1_s(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    const uint16_t high = at<uint16_t>(p + 34 + 2 * j);
    for (int l = 0; l < 4; l++) entry<8, 0>(codebook, p[2 + 4 * j + l] | (high >> (3 * l) & 7) << 8, 0, u.code + 8 * l);
    u.d = at<uint16_t>(p);
    u.s[0] = uint8_t((high >> 15 ? NO_SHIFT + 16 : NO_SHIFT - 16) | (2 * (high >> 12 & 7) + 1));
}

// low[32], per eight three high bits and the sign of its shift, then words of four scales and four bits of d
void unpack_iq1_m(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u) {
    for (int l = 0; l < 4; l++) {
        const int high = p[32 + 2 * j + l / 2] >> (l % 2 * 4);
        uint8_t* code = u.code + 8 * l;
        entry<8, 0>(codebook, p[4 * j + l] | (high & 7) << 8, 0, code);
        for (int i = 0; i < 8; i++) code[i] = uint8_t(2 * code[i] + (high & 8 ? 0 : 1));
    }
    for (int i = 0; i < 4; i++) u.d = uint16_t(u.d | at<uint16_t>(p + 48 + 2 * i) >> 12 << (4 * i));
    for (int i = 0; i < 2; i++)
        u.s[i] = uint8_t(2 * (at<uint16_t>(p + 48 + j / 2 * 2) >> (j % 2 * 6 + 3 * i) & 7) + 1);
}

constexpr int8_t IQ1_VALUES[16] = {-9, -7, -1, 1, 7, 9};
constexpr int8_t IQ2_VALUES[16] = {8, 25, 43, 0, -8, -25, -43, 0};
constexpr int8_t IQ3_XXS_VALUES[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
constexpr int8_t IQ3_S_VALUES[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int8_t Q3_VALUES[16] = {-4, -3, -2, -1, 0, 1, 2, 3};

constexpr Format plain(const char* name, int bytes, Codes codes) {
    return {name, 1, bytes, codes, Scales::NONE, 0, nullptr, nullptr, 1, 0};
}

constexpr Format FORMATS[] = {
    plain("F32", 4, Codes::F32),
    plain("F16", 2, Codes::F16),
    plain("BF16", 2, Codes::BF16),
    {"Q4_0", 32, 18, Codes::C4, Scales::D, 8, unpack_simple<false, false>, nullptr, 1, 0},
    {"Q4_1", 32, 20, Codes::C4, Scales::DM, 0, unpack_simple<false, true>, nullptr, 1, 0},
    {"Q5_0", 32, 22, Codes::C5, Scales::D, 16, unpack_simple<true, false>, nullptr, 1, 0},
    {"Q5_1", 32, 24, Codes::C5, Scales::DM, 0, unpack_simple<true, true>, nullptr, 1, 0},
    {"Q8_0", 32, 34, Codes::C8, Scales::D, 128, unpack_q8_0, nullptr, 1, 0},
    {"Q2_K", 256, 84, Codes::C2, Scales::K2, 0, unpack_q2_k, nullptr, 1, 0},
    {"Q3_K", 256, 110, Codes::T3, Scales::S2, 128, unpack_q3_k, Q3_VALUES, 1, 0},
    {"Q4_K", 256, 144, Codes::C4, Scales::K, 0, unpack_k<false>, nullptr, 1, 0},
    {"Q5_K", 256, 176, Codes::C5, Scales::K, 0, unpack_k<true>, nullptr, 1, 0},
    {"Q6_K", 256, 210, Codes::C6, Scales::S2, 32, unpack_q6_k, nullptr, 1, 0},
    {"TQ1_0", 256, 54, Codes::C2, Scales::T, 0, unpack_tq1_0, nullptr, 1, 0},
    {"TQ2_0", 256, 66, Codes::C2, Scales::T, 0, unpack_tq2_0, nullptr, 1, 0},
    {"IQ1_S", 256, 50, Codes::C2, Scales::T, 0, unpack_iq1_s, nullptr, 1, 2048 * 8},
    {"IQ1_M", 256, 56, Codes::T3, Scales::S2, 128, unpack_iq1_m, IQ1_VALUES, 1.0f / 8, 2048 * 8},
    {"IQ2_XXS", 256, 66, Codes::T3, Scales::S2, 128, unpack_iq2_xxs, IQ2_VALUES, 1.0f / 8, 256 * 8},
    {"IQ2_XS", 256, 74, Codes::T3, Scales::S2, 128, unpack_iq2_xs, IQ2_VALUES, 1.0f / 8, 512 * 8},
    {"IQ2_S", 256, 82, Codes::T3, Scales::S2, 128, unpack_iq2_s, IQ2_VALUES, 1.0f / 8, 1024 * 8},
    {"IQ3_XXS", 256, 98, Codes::T4, Scales::S, 128, unpack_iq3_xxs, IQ3_XXS_VALUES, 1.0f / 4, 256 * 4},
    {"IQ3_S", 256, 110, Codes::T4, Scales::S, 128, unpack_iq3_s, IQ3_S_VALUES, 1, 512 * 4},
    {"IQ4_NL", 32, 18, Codes::T4, Scales::D, 128, unpack_iq4_nl, IQ4_VALUES, 1, 0},
    {"IQ4_XS", 256, 136, Codes::T4, Scales::S, 128, unpack_iq4_xs, IQ4_VALUES, 1, 0},
    {"MXFP4", 32, 17, Codes::T4, Scales::B, 128, unpack_mxfp4, MXFP4_VALUES, 1, 0},
};

}  // namespace

const Format* find_format(const std::string& name) {
    for (const Format& f : FORMATS)
        if (name == f.name) return &f;
    return nullptr;
}

}  // namespace phaseline
