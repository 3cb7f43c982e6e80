// The formats that weights have in files, and the few kinds of codes and scales that all of them are packed into.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace phaseline {

constexpr int PANEL = 16;   // output rows per panel: the lanes of one vector
constexpr int BLOCK = 32;   // K per quantisation block
constexpr int SUPER = 256;  // K per super-block of the formats that have them

// How a code is stored. For quantised kinds, byte 4 * lane + i of vector j (of eight) is the code at k = 4j + i.
//   C2: two vectors; bits 2s and 2s + 1 of vector u are vector 4u + s
//   C4: four vectors; the low nibble of vector t is vector t, the high nibble vector t + 4
//   C5: as C4, then eight 64-bit words: bit b of word j is bit 4 of byte b of vector j
//   C6: as C4, then two vectors: bits 2s and 2s + 1 of vector u are bits 4 and 5 of vector 4u + s
//   C8: eight vectors
//   T3: as C2, then eight 64-bit words: bit b of word j is bit 2 of byte b of vector j. Codes number values
//   T4: as C4. Codes number values
//   F32, F16, BF16: sixteen lanes for each k in turn
enum class Codes { C2, C4, C5, C6, C8, T3, T4, F32, F16, BF16 };

// How a block's scale is stored, all lanes side by side. x is the code less the offset, or the value that it numbers.
//   D:  half d[16]                          w = d * x
//   B:  bf16 d[16]                          w = d * x
//   DM: half d[16], half m[16]              w = d * x + m
//   S:  per super-block half d[16]; then per block s8 s[16]           w = d * s * x
//   S2: per super-block half d[16]; then per block two times s8 s[16], one for each half of the block
//   K:  per super-block half d[16], half m[16]; then per block u8 s[16], u8 t[16]   w = d * s * x - m * t
//   K2: as K with s and t in the low and high nibbles of u8 [16], two times, one for each half of the block
//   T:  per super-block half d[16]; then per block u8 [16] with s and t in its nibbles   w = d * s * (x - t / 8)
enum class Scales { D, B, DM, S, S2, K, K2, T, NONE };

// One block of 32 as it stands in a file: unsigned codes, and the scales as the panel will hold them.
struct Unpacked {
    uint8_t code[BLOCK];
    uint16_t d, m;  // halves (or bf16)
    uint8_t s[2];   // what a block has of its own beside them
};

struct Format {
    const char* name;
    int block;  // elements per block in the file
    int bytes;  // bytes per block in the file
    Codes codes;
    Scales scales;
    int offset;
    // Block `j` of the super-block (or block) at `p`. Null for plain types.
    void (*unpack)(const uint8_t* p, int j, const uint8_t* codebook, Unpacked& u);
    const int8_t* values;  // sixteen that T codes number
    float unit;            // a power of two that all of w is multiplied by
    size_t codebook;       // bytes of the codebook that its blocks refer to, which the caller of the packing brings
};

// The row of that name, or a null pointer.
const Format* find_format(const std::string& name);

constexpr size_t code_bytes(Codes c) {  // per block of 32, or per k for plain types; all 16 lanes
    switch (c) {
        case Codes::C2: return 128;
        case Codes::T3: return 192;
        case Codes::C4:
        case Codes::T4: return 256;
        case Codes::C5: return 320;
        case Codes::C6: return 384;
        case Codes::C8: return 512;
        case Codes::F32: return 64;
        default: return 32;
    }
}

constexpr size_t own_bytes(Scales s) {  // of scales per block
    switch (s) {
        case Scales::NONE: return 0;
        case Scales::S:
        case Scales::T: return 16;
        case Scales::DM: return 64;
        default: return 32;
    }
}

constexpr size_t shared_bytes(Scales s) {  // of scales per super-block, before those of its blocks
    switch (s) {
        case Scales::S:
        case Scales::S2:
        case Scales::T: return 32;
        case Scales::K:
        case Scales::K2: return 64;
        default: return 0;
    }
}

constexpr size_t shared_at(Scales s, int b) {  // where the super-block of block b starts among a panel's scales
    return size_t(b) / 8 * (shared_bytes(s) + 8 * own_bytes(s));
}
constexpr size_t own_at(Scales s, int b) { return shared_at(s, b) + shared_bytes(s) + size_t(b) % 8 * own_bytes(s); }

constexpr bool is_plain(Codes c) { return c == Codes::F32 || c == Codes::F16 || c == Codes::BF16; }
constexpr bool is_table(Codes c) { return c == Codes::T3 || c == Codes::T4; }
constexpr bool has_halves(Scales s) { return s == Scales::S2 || s == Scales::K2; }
constexpr bool has_minimum(Scales s) { return s == Scales::DM || s == Scales::K || s == Scales::K2 || s == Scales::T; }

}  // namespace phaseline
