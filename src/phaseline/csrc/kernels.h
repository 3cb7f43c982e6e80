// The table of kernels: one instance per instruction-set level, filled by level/table.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

#include "matrix.h"

namespace phaseline {

// Thirty-two activations of one row in integers: a = scale * q with |q| <= 127 * 128, so each value keeps its
// fifteen bits. Sums of products with integer codes are exact, in any order and at any level.
// AVX-512 splits q = 128 * hi + lo into bytes (hi[32], lo[32]); the others keep 16-bit q, each four as 0 2 1 3.
struct QuantBlock {
    float scale;
    float sum;        // scale times the sum of q
    int32_t less[3];  // minus the sums of q over each half, and over all: times an offset, what codes count too much
    int8_t words[64];
};

constexpr int MAX_TILE = 8;  // rows of the largest tile at any level
constexpr size_t TILE_SLACK = MAX_TILE * sizeof(QuantBlock);  // bytes behind prepared rows that kernels may read

// Rows r0 .. r1-1 of a buffer whose rows are `stride` floats apart.
struct RowsIn {
    const float* data;
    size_t stride;
    const float* row(int r) const { return data + size_t(r) * stride; }
};
struct RowsOut {
    float* data;
    size_t stride;
    float* row(int r) const { return data + size_t(r) * stride; }
};

// Activations prepared for a product: per tile of up to `tile_rows` rows, quantised [block][row] or plain [k][row].
struct Prepared {
    uint8_t* data;
    size_t row_bytes;  // a tile of m rows starting at row r begins at data + r * row_bytes
    bool plain;
    uint8_t* tile(int r) const { return data + size_t(r) * row_bytes; }
};

struct Norm {
    const float* weight = nullptr;  // null: no norm
    const float* bias = nullptr;    // null: by the root mean square alone; else the mean is taken away first, and this added last
    float eps = 0;
};

enum class Act { NONE, SILU, GELU, SITU };

// out = residual + act(gate_act(gate * gate_input + gate_bias) * (weight * input + bias)), as far as there are such; a gate
// of SITU limits the other side as well: 25 tanh(y / 25)
struct Product {
    Prepared input;
    const Matrix* weight;
    RowsOut out;
    int first = 0;                // the weight's row that is column 0 of `out`
    RowsIn residual{nullptr, 0};
    const float* bias = nullptr;  // as long as the weight's panels
    Act act = Act::NONE;
    const Matrix* gate = nullptr;
    Prepared gate_input{};        // the same rows, in the form that the gate's weight takes
    const float* gate_bias = nullptr;
    Act gate_act = Act::NONE;
    bool cold = true;             // the weights come from memory, not from a cache that an earlier tile filled
};

enum class KvType { BF16, F32 };

constexpr int PAGE = 32;           // tokens per page
constexpr int SPLIT = 512;         // attention over a context is cut here, always, and merged in order
constexpr int SPLIT_PAGES = SPLIT / PAGE;

// One layer's part of the pages: kv_heads * head_dim * PAGE elements in each (head_dim padded to 16):
//   keys   bf16 [head][d / 2][token][2],  f32 [head][d][token]
//   values bf16 [head][token / 2][d][2],  f32 [head][token][d]
struct KvLayer {
    uint8_t* keys;
    uint8_t* values;
    int kv_heads, head_dim, padded_dim;
    KvType type;
    size_t page_bytes;  // from one page to the next, all layers between
    size_t head_bytes() const { return size_t(padded_dim) * PAGE * (type == KvType::BF16 ? 2 : 4); }
    uint8_t* head(uint8_t* base, int page, int h) const {
        return base + size_t(page) * page_bytes + size_t(h) * head_bytes();
    }
};

// One layer's part of latent pages: a token's row, which all heads share, is `width` elements, of which the first `rank`
// are its value too; padded to whole strips of 32.
//   bf16 [token][width / 32][16][2], columns d and d + 16 of a strip side by side;  f32 [token][width]
struct LatentLayer {
    static constexpr int STRIP = 32;
    uint8_t* rows;
    int rank, width;
    KvType type;
    size_t page_bytes;  // from one page to the next, all layers between
    int padded_width() const { return (width + STRIP - 1) / STRIP * STRIP; }
    int padded_rank() const { return (rank + STRIP - 1) / STRIP * STRIP; }
    uint8_t* page(int p) const { return rows + size_t(p) * page_bytes; }
};

// One layer's part of recurrent pages, in floats. A head's state S[i][j] lies in strips of sixteen columns j, padded with
// zeros: [head][strip][i][16]. The window holds the latest rows of q, k and v side by side, oldest first.
struct DeltaLayer {
    float *state, *window;
    size_t state_page, window_page, window_row;  // from one page, one row to the next
    int heads, dim, taps;
    int strips() const { return (dim + PANEL - 1) / PANEL; }
    float* head(int page, int h) const {
        return state + size_t(page) * state_page + size_t(h) * size_t(strips()) * size_t(dim) * PANEL;
    }
    float* recent(int page, int row) const { return window + size_t(page) * window_page + size_t(row) * window_row; }
};

constexpr int MAX_TAPS = 8;  // rows of the longest convolution

// What is the same for all rows of one head: see program/ops/delta.py.
struct DeltaHead {
    int dim, taps;
    const float* mix;     // [q, k, v][tap][channel], the oldest row's tap first
    const float* shift;
    float rate;
    bool bounded;         // lowest * sigmoid(-rate r), else rate * softplus(r)
    float lowest;
    float unit_eps;
};

// One head's part of a row as it comes, with the rows before it that its convolutions reach, oldest first.
struct DeltaInput {
    const float* recent[3][MAX_TAPS];  // q, k, v
    const float* decay;
    float beta;
};

// And as the recurrence takes it: q and k of their lengths, e^g, v, each padded to whole strips; sigmoid(beta); q . k.
struct DeltaRow {
    float* data;
    int padded;
    static size_t floats(int padded) { return 4 * size_t(padded) + PANEL; }
    float* q() const { return data; }
    float* k() const { return data + padded; }
    float* fade() const { return data + 2 * padded; }
    float* v() const { return data + 3 * padded; }
    float& beta() const { return data[4 * padded]; }
    float& both() const { return data[4 * padded + 1]; }
};
struct DeltaRows {
    float* data;
    int padded;
    DeltaRow row(int r) const { return {data + size_t(r) * DeltaRow::floats(padded), padded}; }
};

// Rows of one sequence that go through some strips of one head's state.
struct DeltaTile {
    DeltaRows rows;
    int count, dim;
    int first_strip, end_strip;
    const float* from;  // the state before
    float* to;          // the state behind the last row; may be the same memory
    RowsOut out;        // (count, dim): S^T q
};

constexpr int EVERYTHING = 0x7fffffff;

constexpr int MAX_MIX = 9;  // rows that a mix averages

// Rows of one token, averaged by the softmax of their scores: see program/ops/mix.py.
struct RowMix {
    const float* rows[MAX_MIX];
    int count, width;
    const float* weight;  // of the scores
    float eps;
};

// A tile of up to `tile_rows` queries of one segment that share key head `kv_head`. Query i (row * group + g) of the
// segment is head kv_head * group + g of its row.
struct QueryTile {
    RowsIn q;
    RowsOut out;
    const int32_t* pages;  // of this sequence
    int first_row;         // of the segment, in the step
    int start;             // position of that row
    int group, kv_head;
    int first, count;      // queries first .. first + count - 1
    int window;            // positions that each reads, the latest; EVERYTHING: no limit
    float scale;
};

// One split's unfinished softmax: out is not yet divided by `sum`. Weights are e^(score - largest).
struct Partial {
    float largest[MAX_TILE], sum[MAX_TILE];
    float* out;  // [MAX_TILE][padded_dim]
};

// How a row chooses its experts: see program/ops/experts.py.
struct RouteSpec {
    int experts, active;
    bool softmax;       // else sigmoid
    const float* bias;  // null: none
    int groups, kept_groups, group_best;
    bool renormalise;
    float scale;
};

// The answers of one row's experts: row rows[j] of `answers` counts as much as shares[j].
struct Combination {
    const float* answers;
    size_t stride;
    const int32_t* rows;
    const float* shares;
    int count, width;
    const float* residual;  // null: none
};

struct Kernels {
    const char* name;
    int tile_rows;  // rows of a full tile, for products and for queries

    // What a thread calls before it runs kernels, and after: where registers of a shape must be asked for.
    void (*open)() = [] {};
    void (*close)() = [] {};

    // x (normalised if asked) into the tile that starts at `row`; `scratch` holds `cols` floats per call.
    void (*prepare)(RowsIn x, int row, int count, int cols, Norm norm, Prepared into, float* scratch);
    // Panels p0 .. p1-1 for the prepared tile of `count` rows at `row`.
    void (*product)(const Product& p, int row, int count, int p0, int p1);
    // out = norm of each of `groups` stretches of `width` floats, plus `residual` where it is not null.
    void (*normalise)(const float* x, const float* residual, float* out, int groups, int width, Norm norm);
    void (*residual_mix)(const RowMix& m, float* out);
    // Rotate pairs of the first `dims` entries of each head: neighbours, or entries dims / 2 apart. Angles are the row's
    // dims / 2 cosines, then as many sines.
    void (*rope)(const float* x, float* out, const float* angles, int heads, int head_dim, int dims, bool halves);
    // One row's keys and values into slot `offset` of `page`.
    void (*store_kv)(const KvLayer& kv, const float* k, const float* v, int page, int offset);
    // Positions split * SPLIT .. of the tile's queries into `into`. Scratch: attend_scratch() floats.
    void (*attend)(const KvLayer& kv, const QueryTile& t, int split, Partial& into, float* scratch);
    // The same for rows of a latent and for queries as wide as those.
    void (*store_latent)(const LatentLayer& kv, const float* x, int page, int offset);
    void (*attend_latent)(const LatentLayer& kv, const QueryTile& t, int split, Partial& into, float* scratch);
    // a := a merged with the next split b.
    void (*merge)(Partial& a, const Partial& b, int count, int padded_dim);
    // Divide by the sums and write the tile's rows of `out`, `dim` elements of each query's `padded_dim`.
    void (*finish)(const QueryTile& t, const Partial& a, int dim, int padded_dim);
    // One head of one row, ready for the recurrence; the recurrence; x *= sigmoid(g).
    void (*delta_prepare)(const DeltaHead& h, const DeltaInput& in, DeltaRow out);
    void (*delta)(const DeltaTile& t);
    void (*gate)(const float* g, float* x, int n);
    // One row's choice, best first; scratch: route_scratch() floats.
    void (*route)(const RouteSpec& s, const float* logits, float* chosen, float* shares, float* scratch);
    // residual + the weighted answers, in their order.
    void (*combine)(const Combination& c, float* out);

    // Ceilings: register-only loops of n rounds, returning operations done; and one pass of loads over a buffer.
    double (*burn_float)(long n);
    double (*burn_quant)(long n);
    double (*read)(const uint8_t* data, size_t bytes);
};

constexpr size_t attend_scratch(int padded_dim) { return size_t(MAX_TILE) * (size_t(padded_dim) + PAGE); }

constexpr size_t route_scratch(int experts) { return 4 * (size_t(experts) + PANEL); }

// The table of a level by name. Throws std::invalid_argument where the name is unknown, or the level does not run here.
const Kernels& kernels_here(const char* name);
// Whether this processor (and its operating system) can run that level; for AMX, the system is asked to.
bool level_runs_here(const char* name);
// From now on the level amx runs wherever AVX-512 does: for tests, which bring somebody who executes its instructions.
void trust_tiles();
// Names from the plainest level to the widest.
extern const char* const LEVELS[4];

}  // namespace phaseline
