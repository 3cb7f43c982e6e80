// AMX's instructions as far as our kernels use them, executed where the processor has none: each traps, and is carried out
// here on plain memory, as the processor's manual has it.
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include <cstdint>

namespace {

struct Tiles {
    uint8_t config[64];
    uint8_t data[8][16][64];
    int rows(int t) const { return config[48 + t]; }
    int row_bytes(int t) const { return config[16 + 2 * t] | config[17 + 2 * t] << 8; }
};
thread_local Tiles tiles;  // all zero: not configured

constexpr int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// One instruction with a three-byte VEX prefix and an opcode of map 0F38.
struct Instruction {
    int prefix, opcode, reg, rm, other;  // prefix: none, 66, F3, F2
    bool memory;
    uint8_t* address;
    int64_t step;  // what the index register holds, scaled
    const uint8_t* end;

    bool read(const uint8_t* at, const greg_t* g) {
        if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) return false;  // map 2; W 0, L 0
        prefix = at[2] & 3, other = ~(at[2] >> 3) & 15, opcode = at[3];
        const int high_index = at[1] & 0x40 ? 0 : 8, high_base = at[1] & 0x20 ? 0 : 8, mod = at[4] >> 6;
        reg = at[4] >> 3 & 7, rm = at[4] & 7, memory = mod != 3, address = nullptr, step = 0, end = at + 5;
        if (!memory) return true;
        if (rm == 4) {
            const int scale = *end >> 6, index = (*end >> 3 & 7) | high_index, base = *end & 7;
            end++;
            if (index != 4) step = g[REGISTERS[index]] << scale;
            if (base != 5 || mod != 0) address = reinterpret_cast<uint8_t*>(g[REGISTERS[base | high_base]]);
            else return false;  // no base: compilers do not write that here
        } else if (rm != 5 || mod != 0) {
            address = reinterpret_cast<uint8_t*>(g[REGISTERS[rm | high_base]]);
        }
        int32_t offset = 0;
        if (mod == 1) offset = int8_t(*end), end += 1;
        if (mod == 2 || (mod == 0 && rm == 5)) memcpy(&offset, end, 4), end += 4;
        if (mod == 0 && rm == 5) address = const_cast<uint8_t*>(end);  // from the next instruction on
        address += offset;
        return true;
    }
};

// c[m][n] += sum over k of a[m][k] * b[k / 4][n][k % 4], a's bytes signed, b's not.
bool multiply(int c, int a, int b) {
    if (tiles.row_bytes(a) > 4 * tiles.rows(b) || tiles.rows(a) != tiles.rows(c) || tiles.row_bytes(b) != tiles.row_bytes(c))
        return false;
    for (int m = 0; m < tiles.rows(c); m++)
        for (int n = 0; n < tiles.row_bytes(c) / 4; n++) {
            int32_t sum;
            memcpy(&sum, &tiles.data[c][m][4 * n], 4);
            for (int k = 0; k < tiles.row_bytes(a); k++)
                sum += int8_t(tiles.data[a][m][k]) * tiles.data[b][k / 4][4 * n + k % 4];
            memcpy(&tiles.data[c][m][4 * n], &sum, 4);
        }
    return true;
}

bool configure(const uint8_t* from) {
    if (from[0] != 1 || from[1] != 0) return false;
    tiles = {};
    memcpy(tiles.config, from, 64);
    for (int t = 0; t < 8; t++)
        if (tiles.rows(t) > 16 || tiles.row_bytes(t) > 64) return false;
    return true;
}

bool run(const Instruction& i) {
    enum { NONE, X66, F3, F2 };
    if (i.opcode == 0x49 && i.prefix == NONE && i.memory) return configure(i.address);
    if (i.opcode == 0x49 && i.prefix == NONE) return tiles = {}, true;
    if (tiles.config[0] != 1) return false;  // not configured
    if (i.opcode == 0x49 && i.prefix == F2 && !i.memory) return memset(tiles.data[i.reg], 0, sizeof tiles.data[0]), true;
    if (i.opcode == 0x5E && i.prefix == F3 && !i.memory) return multiply(i.reg, i.rm, i.other);
    if (i.opcode != 0x4B || !i.memory || (i.prefix != F2 && i.prefix != F3)) return false;
    if (i.prefix == F2) memset(tiles.data[i.reg], 0, sizeof tiles.data[0]);
    for (int row = 0; row < tiles.rows(i.reg); row++) {
        uint8_t *line = tiles.data[i.reg][row], *memory = i.address + row * i.step;
        const size_t bytes = size_t(tiles.row_bytes(i.reg));
        if (i.prefix == F2) memcpy(line, memory, bytes);
        else memcpy(memory, line, bytes);
    }
    return true;
}

void on_trap(int, siginfo_t*, void* context) {
    greg_t* g = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    Instruction i;
    if (i.read(reinterpret_cast<const uint8_t*>(g[REG_RIP]), g) && run(i)) g[REG_RIP] = greg_t(i.end);
    else signal(SIGILL, SIG_DFL);  // the instruction traps again, and ends the process
}

}  // namespace

extern "C" int emulate_tiles() {
    struct sigaction action = {};
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGILL, &action, nullptr);
}
