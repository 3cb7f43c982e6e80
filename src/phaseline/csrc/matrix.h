// Weights as the kernels want them: panels of sixteen output rows, K in blocks of thirty-two.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "team.h"

namespace phaseline {

constexpr int PANEL = 16;   // output rows per panel: the lanes of one vector
constexpr int BLOCK = 32;   // K per quantisation block
constexpr int SUPER = 256;  // K per super-block of the K formats

// How a code is stored. For quantised kinds, byte 4 * lane + i of vector j (of eight) is the code at k = 4j + i.
//   C4: four vectors; the low nibble of vector t is vector t, the high nibble vector t + 4
//   C5: as C4, then eight 64-bit words: bit b of word j is bit 4 of byte b of vector j
//   C6: as C4, then two vectors: bits 2s and 2s + 1 of vector u are bits 4 and 5 of vector 4u + s
//   C8: eight vectors
//   F32, F16, BF16: sixteen lanes for each k in turn
enum class Codes { C4, C5, C6, C8, F32, F16, BF16 };

// How a block's scale is stored, all lanes side by side.
//   D:  half d[16]                          w = d * (code - offset)
//   DM: half d[16], half m[16]              w = d * code + m
//   K:  per super-block half d[16], half m[16]; then per block u8 s[16], u8 t[16]   w = d * s * code - m * t
//   K6: per super-block half d[16]; then per block two times s8 s[16], one for each half of the block
//                                           w = d * s * (code - offset)
enum class Scales { D, DM, K, K6, NONE };

struct Format {
    const char* name;
    Codes codes;
    Scales scales;
    int offset;
    int block;  // elements per block in the file
    int bytes;  // bytes per block in the file
};

// The row of that name, or a null pointer.
const Format* find_format(const std::string& name);

constexpr size_t code_bytes(Codes c) {  // per block of 32, or per k for plain types; all 16 lanes
    switch (c) {
        case Codes::C4: return 256;
        case Codes::C5: return 320;
        case Codes::C6: return 384;
        case Codes::C8: return 512;
        case Codes::F32: return 64;
        default: return 32;
    }
}

constexpr size_t scale_bytes(Scales s, int blocks) {  // per panel
    switch (s) {
        case Scales::D: return size_t(blocks) * 32;
        case Scales::DM: return size_t(blocks) * 64;
        case Scales::K: return size_t(blocks) / 8 * 320;
        case Scales::K6: return size_t(blocks) / 8 * 288;
        default: return 0;
    }
}

constexpr bool is_plain(Codes c) { return c == Codes::F32 || c == Codes::F16 || c == Codes::BF16; }

// The memory of a model's packed weights: slabs backed by huge pages, so that streaming through them misses no
// translation. Sole owner; matrices point into it.
class Store {
  public:
    ~Store();
    Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    // `bytes` of memory, zeroed, on a cache line.
    uint8_t* take(size_t bytes);

  private:
    struct Slab {
        uint8_t* data;
        size_t bytes, used;
    };
    std::vector<Slab> slabs_;
};

// A packed weight of `rows` outputs and `cols` inputs; the last panel is padded with zeros.
class Matrix {
  public:
    // `raw` holds rows * row_bytes bytes in the file's layout. Packing runs on the whole team. `store` outlives it.
    Matrix(const Format& format, const uint8_t* raw, size_t row_bytes, int rows, int cols, Team& team, Store& store);

    const Format& format;
    const int rows, cols, panels, blocks;

    const uint8_t* scales(int panel) const { return data_ + size_t(panel) * panel_bytes_; }
    const uint8_t* codes(int panel) const { return scales(panel) + scale_bytes_; }
    size_t nbytes() const { return panel_bytes_ * size_t(panels); }

    // One row as floats, read back from the panels: embedding look-up, and the check of the packing.
    void unpack_row(int row, float* out) const;

  private:
    void pack_panel(int panel, const uint8_t* raw, size_t row_bytes);

    size_t scale_bytes_, panel_bytes_;
    uint8_t* data_;
};

}  // namespace phaseline
