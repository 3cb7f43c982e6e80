// Weights as the kernels want them: panels of sixteen output rows, K in blocks of thirty-two.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats.h"
#include "team.h"

namespace phaseline {

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

// Bytes of a panel's scales, and of a whole panel, for rows of `cols`.
size_t panel_scale_bytes(const Format& format, int cols);
size_t panel_bytes(const Format& format, int cols);

// A packed weight of `rows` outputs and `cols` inputs; the last panel is padded with zeros.
class Matrix {
  public:
    // `raw` holds rows * row_bytes bytes in the file's layout, `codebook` what the format's blocks refer to. Packing
    // runs on the whole team. `store` outlives the matrix.
    Matrix(const Format& format, const uint8_t* raw, size_t row_bytes, int rows, int cols, const uint8_t* codebook,
           Team& team, Store& store);

    const Format& format;
    const int rows, cols, panels, blocks;

    const uint8_t* scales(int panel) const { return data_ + size_t(panel) * panel_bytes_; }
    const uint8_t* codes(int panel) const { return scales(panel) + scale_bytes_; }
    size_t nbytes() const { return panel_bytes_ * size_t(panels); }

    // One row as floats, read back from the panels: embedding look-up, and the check of the packing.
    void unpack_row(int row, float* out) const;

  private:
    void pack_panel(int panel, const uint8_t* raw, size_t row_bytes, const uint8_t* codebook);

    size_t scale_bytes_, panel_bytes_;
    uint8_t* data_;
};

}  // namespace phaseline
