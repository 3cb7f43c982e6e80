// Block decoders: how each kind of code and scale is read from a panel. One per kind, shared by all row counts.
#pragma once
#include "matrix.h"
#include "simd.h"

namespace PHASELINE_LEVEL {

using phaseline::Codes;
using phaseline::Scales;

// Vector J (of eight) of a block's codes: lane i holds k = 4J .. 4J + 3.
template <Codes C, int J> Bytes codes_at(const uint8_t* block) {
    if constexpr (C == Codes::C8) return load_bytes(block + 64 * J);
    const Bytes packed = load_bytes(block + 64 * (J % 4));
    Bytes w;
    if constexpr (J < 4) w = low_nibbles(packed);
    else w = high_nibbles(packed);
    if constexpr (C == Codes::C5) w = or_16_where(w, block + 256 + 8 * J);
    if constexpr (C == Codes::C6) w = w | two_bits_at_4<J % 4>(load_bytes(block + 256 + 64 * (J / 4)));
    return w;
}

struct Scale {
    Float d, m;  // m: minimum (DM, K), or the second half's scale (K6)
};

template <Scales S> Scale scale_at(const uint8_t* panel, int b) {
    const auto half = [](const uint8_t* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); };
    if constexpr (S == Scales::D) return {half(panel + b * 32), zero()};
    if constexpr (S == Scales::DM) return {half(panel + b * 64), half(panel + b * 64 + 32)};
    const int j = b % 8;
    if constexpr (S == Scales::K) {
        const uint8_t* super = panel + b / 8 * 320;
        const uint8_t* own = super + 64 + j * 32;
        return {half(super) * to_float(load_u8(own)), zero() - half(super + 32) * to_float(load_u8(own + 16))};
    } else {
        const uint8_t* super = panel + b / 8 * 288;
        const int8_t* own = reinterpret_cast<const int8_t*>(super + 32 + j * 32);
        const Float d = half(super);
        return {d * to_float(load_s8(own)), d * to_float(load_s8(own + 16))};
    }
}

}  // namespace PHASELINE_LEVEL
