// Dot products of tiles of rows on AMX. Sums of integer products are exact, so they are those of level/dot.h.
#pragma once
#include "level/dot.h"

#if defined(__AMX_INT8__)

namespace PHASELINE_LEVEL {

// Instructions are written out, with the memory they touch: GCC 12's intrinsics do not name it, and stores get lost.

// Shapes of the tiles a thread has from open_tiles to close_tiles. 0 and 1 hold the sums of high and of low bytes, eight
// rows of sixteen outputs; 2 and 3 those bytes, eight rows of 32 k; 4 their codes, [k / 4][output][4]; 5, 6 and 7 are
// 2, 3 and 4 for half a block.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 32, 32, 64, 16, 16, 64};
    uint8_t rows[16] = {8, 8, 8, 8, 8, 8, 8, 4};
};
static_assert(sizeof(TileShapes) == 64);

inline void open_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes)); }
inline void close_tiles() { asm volatile("tilerelease" : : : "memory"); }

#define PHASELINE_MULTIPLY(HIGH, LOW, CODES, FIRST)                                                                    \
    asm volatile("tilezero %%tmm0\n\t"                                                                                 \
                 "tilezero %%tmm1\n\t"                                                                                 \
                 "tileloadd (%[codes],%[line],1), %%" CODES "\n\t"                                                     \
                 "tileloadd (%[words],%[block],1), %%" HIGH "\n\t"                                                     \
                 "tdpbsud %%" CODES ", %%" HIGH ", %%tmm0\n\t"                                                         \
                 "tileloadd 32(%[words],%[block],1), %%" LOW "\n\t"                                                    \
                 "tdpbsud %%" CODES ", %%" LOW ", %%tmm1\n\t"                                                         \
                 "tilestored %%tmm0, (%[hi],%[line],1)\n\t"                                                            \
                 "tilestored %%tmm1, (%[lo],%[line],1)"                                                                \
                 : "=m"(hi), "=m"(lo)                                                                                  \
                 : [codes] "r"(codes), [words] "r"(a->words + (FIRST)), [hi] "r"(hi), [lo] "r"(lo), [line] "r"(64L),   \
                   [block] "r"(long(sizeof(QuantBlock))), "m"(codes), "m"(*reinterpret_cast<const QuantBlock(*)[8]>(a)))

// Tiles always have eight rows: where there are fewer, what lies behind is multiplied too (TILE_SLACK), and left at that. Below
// four rows the instructions of level/dot.h are fewer.
template <int M, int OFFSET, int PART> requires(M >= 4) struct Dot<M, OFFSET, PART> {
    alignas(64) uint8_t codes[8][64];
    alignas(64) int32_t hi[8][LANES], lo[8][LANES];
    const QuantBlock* a;

    explicit Dot(const QuantBlock* rows) : a(rows) {}

    // The last step multiplies.
    void step(int j, Bytes w, const QuantBlock*) {
        _mm512_store_si512(codes[PART == 1 ? j - 4 : j], w.v);
        if (j != (PART == 0 ? 3 : 7)) return;
        if constexpr (PART == 2) PHASELINE_MULTIPLY("tmm2", "tmm3", "tmm4", 0);
        else PHASELINE_MULTIPLY("tmm5", "tmm6", "tmm7", 16 * PART);
    }

    Int value(int r) const {
        const Int bytes = shift_left<7>(Int{_mm512_load_si512(hi[r])}) + Int{_mm512_load_si512(lo[r])};
        return OFFSET == 0 ? bytes : bytes + offset_sum<OFFSET, PART>(a[r]);
    }
};

#undef PHASELINE_MULTIPLY

}  // namespace PHASELINE_LEVEL

#endif
