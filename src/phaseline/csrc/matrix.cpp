#include "matrix.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace phaseline {

namespace {

constexpr Format FORMATS[] = {
    {"F32", Codes::F32, Scales::NONE, 0, 1, 4},      {"F16", Codes::F16, Scales::NONE, 0, 1, 2},
    {"BF16", Codes::BF16, Scales::NONE, 0, 1, 2},    {"Q4_0", Codes::C4, Scales::D, 8, 32, 18},
    {"Q4_1", Codes::C4, Scales::DM, 0, 32, 20},      {"Q5_0", Codes::C5, Scales::D, 16, 32, 22},
    {"Q5_1", Codes::C5, Scales::DM, 0, 32, 24},      {"Q8_0", Codes::C8, Scales::D, 128, 32, 34},
    {"Q4_K", Codes::C4, Scales::K, 0, 256, 144},     {"Q5_K", Codes::C5, Scales::K, 0, 256, 176},
    {"Q6_K", Codes::C6, Scales::K6, 32, 256, 210},
};

// One block of 32 as it stands in the file: unsigned codes, and the scales as the panel will hold them.
struct Unpacked {
    uint8_t code[BLOCK];
    uint16_t d, m;    // halves
    uint8_t s[2];     // small scale and minimum of a K format, or the two scales of K6
};

uint16_t half_at(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

void nibbles(const uint8_t* q, uint8_t* code) {
    for (int i = 0; i < 16; i++) {
        code[i] = q[i] & 15;
        code[i + 16] = q[i] >> 4;
    }
}

void fifth_bits(const uint8_t* q, uint8_t* code) {
    uint32_t bits;
    memcpy(&bits, q, 4);
    for (int i = 0; i < 32; i++) code[i] |= uint8_t((bits >> i & 1) << 4);
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

// Block `b` (of 32) of a row.
Unpacked unpack_block(const Format& f, const uint8_t* row, int b) {
    Unpacked u{};
    const uint8_t* p = row + size_t(b) * BLOCK / f.block * f.bytes;  // its block, or the super-block that holds it
    const int j = b % (SUPER / BLOCK);
    if (f.scales == Scales::D || f.scales == Scales::DM) {
        u.d = half_at(p);
        p += 2;
        if (f.scales == Scales::DM) u.m = half_at(p), p += 2;
        if (f.codes == Codes::C8) {
            for (int i = 0; i < BLOCK; i++) u.code[i] = uint8_t(p[i] + 128);  // signed byte to offset 128
        } else {
            const bool five = f.codes == Codes::C5;
            nibbles(p + (five ? 4 : 0), u.code);
            if (five) fifth_bits(p, u.code);
        }
    } else if (f.scales == Scales::K) {
        u.d = half_at(p);
        u.m = half_at(p + 2);
        k_scales(p + 4, j, u.s);
        const bool five = f.codes == Codes::C5;
        const uint8_t* q = p + 16 + (five ? 32 : 0) + j / 2 * 32;
        for (int i = 0; i < BLOCK; i++) u.code[i] = (j % 2 ? q[i] >> 4 : q[i] & 15);
        if (five)
            for (int i = 0; i < BLOCK; i++) u.code[i] |= uint8_t((p[16 + i] >> j & 1) << 4);
    } else {  // K6: ql[128], qh[64], s8 scales[16], half d; each half of 128 elements is four runs of 32
        const int half = j / 4, run = j % 4;
        const uint8_t* low = p + half * 64 + (run % 2) * 32;
        const uint8_t* high = p + 128 + half * 32;
        for (int i = 0; i < BLOCK; i++)
            u.code[i] = uint8_t((run < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * run) & 3) << 4);
        memcpy(u.s, p + 192 + half * 8 + run * 2, 2);
        u.d = half_at(p + 208);
    }
    return u;
}

uint8_t* scale_slot(Scales kind, uint8_t* panel, int b) {  // where block b's own scales start
    const int super = b / 8, j = b % 8;
    switch (kind) {
        case Scales::D: return panel + b * 32;
        case Scales::DM: return panel + b * 64;
        case Scales::K: return panel + super * 320 + 64 + j * 32;
        default: return panel + super * 288 + 32 + j * 32;
    }
}

uint8_t* super_slot(Scales kind, uint8_t* panel, int b) { return panel + b / 8 * (kind == Scales::K ? 320 : 288); }

void put_half(uint8_t* p, int lane, uint16_t h) { memcpy(p + 2 * lane, &h, 2); }

void put_scales(Scales kind, uint8_t* panel, int b, int lane, const Unpacked& u) {
    uint8_t* own = scale_slot(kind, panel, b);
    if (kind == Scales::D || kind == Scales::DM) {
        put_half(own, lane, u.d);
        if (kind == Scales::DM) put_half(own + 32, lane, u.m);
        return;
    }
    uint8_t* shared = super_slot(kind, panel, b);
    put_half(shared, lane, u.d);
    if (kind == Scales::K) put_half(shared + 32, lane, u.m);
    own[lane] = u.s[0];
    own[16 + lane] = u.s[1];
}

void put_codes(Codes kind, uint8_t* block, int lane, const uint8_t* code) {
    auto at = [&](int vector, int i) -> uint8_t& { return block[vector * 64 + lane * 4 + i]; };
    if (kind == Codes::C8) {
        for (int k = 0; k < BLOCK; k++) at(k / 4, k % 4) = code[k];
        return;
    }
    for (int k = 0; k < 16; k++) at(k / 4, k % 4) = uint8_t((code[k] & 15) | code[k + 16] << 4);
    uint8_t* extra = block + 256;
    for (int k = 0; k < BLOCK; k++) {
        const int j = k / 4, bit = lane * 4 + k % 4;
        if (kind == Codes::C5) extra[j * 8 + bit / 8] |= uint8_t((code[k] >> 4 & 1) << (bit % 8));
        if (kind == Codes::C6) extra[j / 4 * 64 + bit] |= uint8_t((code[k] >> 4) << (j % 4 * 2));
    }
}

int get_code(Codes kind, const uint8_t* block, int lane, int k) {
    const int j = k / 4, bit = lane * 4 + k % 4;
    if (kind == Codes::C8) return block[j * 64 + bit];
    const uint8_t low = block[j % 4 * 64 + bit];
    int code = j < 4 ? low & 15 : low >> 4;
    const uint8_t* extra = block + 256;
    if (kind == Codes::C5) code |= (extra[j * 8 + bit / 8] >> (bit % 8) & 1) << 4;
    if (kind == Codes::C6) code |= (extra[j / 4 * 64 + bit] >> (j % 4 * 2) & 3) << 4;
    return code;
}

float half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    float v = exponent ? __builtin_ldexpf(float(fraction + 1024), exponent - 25) : __builtin_ldexpf(float(fraction), -24);
    if (exponent == 31) v = fraction ? __builtin_nanf("") : __builtin_inff();
    return h & 0x8000 ? -v : v;
}

float plain_value(Codes kind, const uint8_t* p) {
    if (kind == Codes::F16) return half_value(half_at(p));
    uint32_t bits = 0;
    if (kind == Codes::F32) memcpy(&bits, p, 4);
    else bits = uint32_t(half_at(p)) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

constexpr size_t HUGE_PAGE = size_t(2) << 20;
constexpr size_t SLAB = 32 * HUGE_PAGE;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

const Format* find_format(const std::string& name) {
    for (const Format& f : FORMATS)
        if (name == f.name) return &f;
    return nullptr;
}

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

Matrix::Matrix(const Format& format, const uint8_t* raw, size_t row_bytes, int rows, int cols, Team& team, Store& store)
    : format(format), rows(rows), cols(cols), panels((rows + PANEL - 1) / PANEL),
      blocks(is_plain(format.codes) ? 0 : cols / BLOCK),
      scale_bytes_(round_up(scale_bytes(format.scales, blocks), 64)),
      panel_bytes_(scale_bytes_ + round_up(size_t(blocks ? blocks : cols) * code_bytes(format.codes), 64)),
      data_(store.take(panel_bytes_ * size_t(panels))) {
    team.run([&](int) {
        for (long p; (p = team.claim()) < panels;) pack_panel(int(p), raw, row_bytes);
    });
}

void Matrix::pack_panel(int panel, const uint8_t* raw, size_t row_bytes) {
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
            const Unpacked u = unpack_block(format, row, b);
            put_scales(format.scales, scales, b, lane, u);
            put_codes(format.codes, codes + size_t(b) * code_bytes(format.codes), lane, u.code);
        }
    }
}

void Matrix::unpack_row(int row, float* out) const {
    const int panel = row / PANEL, lane = row % PANEL;
    uint8_t* s = const_cast<uint8_t*>(scales(panel));
    const uint8_t* c = codes(panel);
    if (is_plain(format.codes)) {
        for (int k = 0; k < cols; k++) out[k] = plain_value(format.codes, c + (size_t(k) * PANEL + size_t(lane)) * size_t(format.bytes));
        return;
    }
    for (int k = 0; k < cols; k++) {
        const int b = k / BLOCK;
        const int code = get_code(format.codes, c + size_t(b) * code_bytes(format.codes), lane, k % BLOCK);
        const uint8_t* own = scale_slot(format.scales, s, b);
        const uint8_t* shared = super_slot(format.scales, s, b);
        switch (format.scales) {
            case Scales::D: out[k] = half_value(half_at(own + 2 * lane)) * float(code - format.offset); break;
            case Scales::DM:
                out[k] = half_value(half_at(own + 2 * lane)) * float(code) + half_value(half_at(own + 32 + 2 * lane));
                break;
            case Scales::K:
                out[k] = half_value(half_at(shared + 2 * lane)) * own[lane] * float(code) -
                         half_value(half_at(shared + 32 + 2 * lane)) * own[16 + lane];
                break;
            default:
                out[k] = half_value(half_at(shared + 2 * lane)) * int8_t(own[k % BLOCK / 16 * 16 + lane]) *
                         float(code - format.offset);
        }
    }
}

}  // namespace phaseline
