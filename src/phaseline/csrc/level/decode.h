// Block decoders: how each kind of code and scale is read from a panel. One per kind, shared by all row counts.
#pragma once
#include "matrix.h"
#include "simd.h"

namespace PHASELINE_LEVEL {

using phaseline::Codes;
using phaseline::Scales;

// The format's sixteen values, moved up by 128 to be unsigned; unused where codes stand for themselves.
template <Codes C> Bytes table_of(const phaseline::Format& f) {
    uint8_t bytes[64] = {};
    if constexpr (phaseline::is_table(C))
        for (int i = 0; i < 64; i++) bytes[i] = uint8_t(f.values[i % 16] + 128);
    return load_bytes(bytes);
}

// Vector J (of eight) of a block's codes, or of the values they number: lane i holds k = 4J .. 4J + 3.
template <Codes C, int J> Bytes codes_at(const uint8_t* block, const Bytes& table) {
    if constexpr (C == Codes::C8) return load_bytes(block + 64 * J);
    if constexpr (C == Codes::C2) return two_bits<J % 4>(load_bytes(block + 64 * (J / 4)));
    if constexpr (C == Codes::T3) {
        const Bytes low = two_bits<J % 4>(load_bytes(block + 64 * (J / 4)));
        return look_up(table, or_where<4>(low, block + 128 + 8 * J));
    }
    const Bytes packed = load_bytes(block + 64 * (J % 4));
    Bytes w;
    if constexpr (J < 4) w = low_nibbles(packed);
    else w = high_nibbles(packed);
    if constexpr (C == Codes::T4) w = look_up(table, w);
    if constexpr (C == Codes::C5) w = or_where<16>(w, block + 256 + 8 * J);
    if constexpr (C == Codes::C6) w = w | two_bits_at_4<J % 4>(load_bytes(block + 256 + 64 * (J / 4)));
    return w;
}

// w = d * x + m, but d * x - m for K2.
struct Scale {
    Float d, m;
};

// That of block b, or of half H of it.
template <Scales S, int H = 0> Scale scale_at(const uint8_t* panel, int b) {
    const auto half = [](const uint8_t* p) { return load_half(reinterpret_cast<const uint16_t*>(p)); };
    const uint8_t* shared = panel + phaseline::shared_at(S, b);
    const uint8_t* own = panel + phaseline::own_at(S, b) + 16 * H;
    if constexpr (S == Scales::D) return {half(own), zero()};
    if constexpr (S == Scales::B) return {load_bf16(reinterpret_cast<const uint16_t*>(own)), zero()};
    if constexpr (S == Scales::DM) return {half(own), half(own + 32)};
    const Float d = half(shared);
    if constexpr (S == Scales::S || S == Scales::S2)
        return {d * to_float(load_s8(reinterpret_cast<const int8_t*>(own))), zero()};
    if constexpr (S == Scales::K)
        return {d * to_float(load_u8(own)), zero() - half(shared + 32) * to_float(load_u8(own + 16))};
    const Int nibbles = load_u8(own);
    const Float s = d * to_float(nibbles & splat_int(15)), t = to_float(shift_right<4>(nibbles));
    if constexpr (S == Scales::K2) return {s, half(shared + 32) * t};
    return {s, s * (t * splat(-0.125f))};
}

}  // namespace PHASELINE_LEVEL
