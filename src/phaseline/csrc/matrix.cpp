#include "matrix.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace phaseline {

namespace {

void put_half(uint8_t* p, int lane, uint16_t h) { memcpy(p + 2 * lane, &h, 2); }
uint16_t get_half(const uint8_t* p, int lane) {
    uint16_t h;
    memcpy(&h, p + 2 * lane, 2);
    return h;
}

void put_scales(Scales kind, uint8_t* panel, int b, int lane, const Unpacked& u) {
    uint8_t* shared = panel + shared_at(kind, b);
    uint8_t* own = panel + own_at(kind, b);
    uint8_t* halves = shared_bytes(kind) ? shared : own;
    put_half(halves, lane, u.d);
    if (kind == Scales::DM || kind == Scales::K || kind == Scales::K2) put_half(halves + 32, lane, u.m);
    if (!shared_bytes(kind)) return;
    own[lane] = u.s[0];
    if (own_bytes(kind) == 32) own[16 + lane] = u.s[1];
}

// Where a code's lowest bits are: C2 and T3 keep four of them in a byte, the others two (C8 one).
struct Place {
    int byte, shift, mask;
};
Place place(Codes kind, int lane, int k) {
    const int j = k / 4, byte = lane * 4 + k % 4;
    if (kind == Codes::C8) return {j * 64 + byte, 0, 255};
    if (kind == Codes::C2 || kind == Codes::T3) return {j / 4 * 64 + byte, j % 4 * 2, 3};
    return {j % 4 * 64 + byte, j / 4 * 4, 15};
}
// And its highest, for the kinds whose codes are split.
Place high_place(Codes kind, int lane, int k) {
    const int j = k / 4, bit = lane * 4 + k % 4;
    if (kind == Codes::T3) return {128 + j * 8 + bit / 8, bit % 8, 1};
    if (kind == Codes::C5) return {256 + j * 8 + bit / 8, bit % 8, 1};
    if (kind == Codes::C6) return {256 + j / 4 * 64 + bit, j % 4 * 2, 3};
    return {0, 0, 0};
}
constexpr int low_bits(Codes kind) { return kind == Codes::T3 ? 2 : 4; }

void put_codes(Codes kind, uint8_t* block, int lane, const uint8_t* code) {
    for (int k = 0; k < BLOCK; k++) {
        const Place low = place(kind, lane, k), high = high_place(kind, lane, k);
        block[low.byte] |= uint8_t((code[k] & low.mask) << low.shift);
        if (high.mask) block[high.byte] |= uint8_t(code[k] >> low_bits(kind) << high.shift);
    }
}

int get_code(Codes kind, const uint8_t* block, int lane, int k) {
    const Place low = place(kind, lane, k), high = high_place(kind, lane, k);
    return (block[low.byte] >> low.shift & low.mask) | (block[high.byte] >> high.shift & high.mask) << low_bits(kind);
}

float half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    float v = exponent ? __builtin_ldexpf(float(fraction + 1024), exponent - 25) : __builtin_ldexpf(float(fraction), -24);
    if (exponent == 31) v = fraction ? __builtin_nanf("") : __builtin_inff();
    return h & 0x8000 ? -v : v;
}

float bf16_value(uint16_t h) {
    const uint32_t bits = uint32_t(h) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

float plain_value(Codes kind, const uint8_t* p) {
    if (kind == Codes::F16) return half_value(get_half(p, 0));
    if (kind == Codes::BF16) return bf16_value(get_half(p, 0));
    float f;
    memcpy(&f, p, 4);
    return f;
}

// The weight of `code` in block b: each product but the last is exact, so that the order matters to no bit.
float value(const Format& f, const uint8_t* panel, int b, int lane, int k, int code) {
    const uint8_t* shared = panel + shared_at(f.scales, b);
    const uint8_t* own = panel + own_at(f.scales, b);
    const uint8_t* halves = shared_bytes(f.scales) ? shared : own;
    const float x = is_table(f.codes) ? f.unit * float(f.values[code]) : float(code - f.offset);
    const float d = f.scales == Scales::B ? bf16_value(get_half(halves, lane)) : half_value(get_half(halves, lane));
    const uint8_t byte = has_halves(f.scales) ? own[k / 16 * 16 + lane] : own[lane];
    switch (f.scales) {
        case Scales::DM: return d * x + half_value(get_half(own + 32, lane));
        case Scales::S:
        case Scales::S2: return d * int8_t(byte) * x;
        case Scales::K: return d * byte * x - half_value(get_half(shared + 32, lane)) * own[16 + lane];
        case Scales::K2: return d * float(byte & 15) * x - half_value(get_half(shared + 32, lane)) * float(byte >> 4);
        case Scales::T: return d * float(byte & 15) * (x - float(byte >> 4) / 8);
        default: return d * x;
    }
}

constexpr size_t HUGE_PAGE = size_t(2) << 20;
constexpr size_t SLAB = 32 * HUGE_PAGE;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Store::~Store() {
    for (const Slab& s : slabs_) munmap(s.data, s.bytes);
}

uint8_t* Store::take(size_t bytes) {
    bytes = round_up(bytes, 64);
    if (slabs_.empty() || slabs_.back().bytes - slabs_.back().used < bytes) {
        // Untouched memory costs nothing, so slabs may be generous; a whole huge page more allows for alignment.
        const size_t size = round_up(bytes > SLAB ? bytes : SLAB, HUGE_PAGE) + HUGE_PAGE;
        void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) throw std::bad_alloc();
        madvise(p, size, MADV_HUGEPAGE);
        const size_t skip = round_up(reinterpret_cast<uintptr_t>(p), HUGE_PAGE) - reinterpret_cast<uintptr_t>(p);
        slabs_.push_back({static_cast<uint8_t*>(p), size, skip});
    }
    Slab& slab = slabs_.back();
    uint8_t* data = slab.data + slab.used;
    slab.used += bytes;
    return data;
}

size_t panel_scale_bytes(const Format& format, int cols) {
    return round_up(own_at(format.scales, cols / BLOCK) - shared_bytes(format.scales), 64);
}

size_t panel_bytes(const Format& format, int cols) {
    const int units = is_plain(format.codes) ? cols : cols / BLOCK;
    return panel_scale_bytes(format, cols) + round_up(size_t(units) * code_bytes(format.codes), 64);
}

Matrix::Matrix(const Format& format, const uint8_t* raw, size_t row_bytes, int rows, int cols, const uint8_t* codebook,
               Team& team, Store& store)
    : format(format), rows(rows), cols(cols), panels((rows + PANEL - 1) / PANEL),
      blocks(is_plain(format.codes) ? 0 : cols / BLOCK),
      scale_bytes_(panel_scale_bytes(format, cols)),
      panel_bytes_(panel_bytes(format, cols)),
      data_(store.take(panel_bytes_ * size_t(panels))) {
    team.run([&](int thread) {
        team.spread(thread, panels, [&](long panel) { pack_panel(int(panel), raw, row_bytes, codebook); });
    });
}

void Matrix::pack_panel(int panel, const uint8_t* raw, size_t row_bytes, const uint8_t* codebook) {
    uint8_t* scales = data_ + size_t(panel) * panel_bytes_;
    uint8_t* codes = scales + scale_bytes_;
    for (int lane = 0; lane < PANEL && panel * PANEL + lane < rows; lane++) {
        const uint8_t* row = raw + size_t(panel * PANEL + lane) * row_bytes;
        if (is_plain(format.codes)) {
            const int size = format.bytes;
            for (int k = 0; k < cols; k++) memcpy(codes + (size_t(k) * PANEL + size_t(lane)) * size_t(size), row + size_t(k) * size_t(size), size_t(size));
            continue;
        }
        for (int b = 0; b < blocks; b++) {
            Unpacked u{};
            format.unpack(row + size_t(b) * BLOCK / size_t(format.block) * size_t(format.bytes), b % 8, codebook, u);
            put_scales(format.scales, scales, b, lane, u);
            put_codes(format.codes, codes + size_t(b) * code_bytes(format.codes), lane, u.code);
        }
    }
}

void Matrix::unpack_row(int row, float* out) const {
    const int panel = row / PANEL, lane = row % PANEL;
    const uint8_t* c = codes(panel);
    if (is_plain(format.codes)) {
        for (int k = 0; k < cols; k++)
            out[k] = plain_value(format.codes, c + (size_t(k) * PANEL + size_t(lane)) * size_t(format.bytes));
        return;
    }
    for (int k = 0; k < cols; k++) {
        const int b = k / BLOCK;
        const int code = get_code(format.codes, c + size_t(b) * code_bytes(format.codes), lane, k % BLOCK);
        out[k] = value(format, scales(panel), b, lane, k % BLOCK, code);
    }
}

}  // namespace phaseline
