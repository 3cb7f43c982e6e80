// The operations of a plan. Each spreads its work over the team in tiles and ends with a barrier.
#pragma once
#include "plan.h"

namespace phaseline {

// body(row) for rows r0 .. r1-1 of cheap row-wise work, in chunks.
template <class F> void spread_rows(const Run& run, int r0, int r1, F body) {
    constexpr int ROW_CHUNK = 8;
    run.spread((r1 - r0 + ROW_CHUNK - 1) / ROW_CHUNK, [&](long task) {
        const int end = std::min(r1, r0 + int(task + 1) * ROW_CHUNK);
        for (int row = r0 + int(task) * ROW_CHUNK; row < end; row++) body(row);
    });
}

// A norm's weights, as long as what is normalised; without a bias it is by the root mean square alone.
struct NormWeights {
    std::vector<float> weight, bias;
    float eps = 0;
    Norm view() const { return {weight.empty() ? nullptr : weight.data(), bias.empty() ? nullptr : bias.data(), eps}; }
};

struct EmbedSpec {
    const Matrix* table;
    Value* out;
    float scale = 1;
    const Matrix* positions = nullptr;  // a row to add for each position
};
std::unique_ptr<Op> make_embed(EmbedSpec spec);
std::unique_ptr<Op> make_select(Value& x, Value& out);
// Each stretch of a row that is as long as the norm's weight; `residual` is added if given.
std::unique_ptr<Op> make_normalise(Value& x, Value& out, NormWeights norm, Value* residual);

// out = x * sigmoid(gate)
std::unique_ptr<Op> make_gate(Value& x, Value& gate, Value& out);

struct MixSpec {
    std::vector<Value*> rows;  // at most MAX_MIX
    Value* out;
    std::vector<float> weight;
    float eps;
};
std::unique_ptr<Op> make_residual_mix(MixSpec spec);

struct RopeSpec {
    Value *x, *out;
    int head_dim, dims;
    bool halves;
    size_t angles_at;
};
std::unique_ptr<Op> make_rope(RopeSpec spec);

struct LinearSpec {
    Value* x;
    NormWeights norm;  // without weight: none
    std::vector<const Matrix*> weights;
    std::vector<std::vector<float>> biases;  // of each weight; or none at all
    std::vector<Value*> outs;                // what all weights give, side by side, is cut into these
    Act gate = Act::NONE;                    // if any: two weights, one output, gate(first) * second
    Act act = Act::NONE;
    Value* residual = nullptr;
};
std::unique_ptr<Op> make_linear(LinearSpec spec);

struct AttendSpec {
    Value *q, *k, *v, *out;
    KvLayer kv;
    int group;  // of the state
    int heads;
    float scale;
    int window;  // or EVERYTHING
};
std::unique_ptr<Op> make_attend(AttendSpec spec);

struct RouteOp {
    Value *logits, *chosen, *shares;
    RouteSpec rule;           // its bias is set here
    std::vector<float> bias;  // empty: none
};
std::unique_ptr<Op> make_route(RouteOp spec);

struct ExpertsSpec {
    Value *x, *chosen, *shares, *out;
    NormWeights norm;                // without weight: none
    const Matrix *gate, *up, *down;  // of all experts, one below the other
    int experts;
    Value* residual;                 // null: none
    Act act;                         // of the gate
};
std::unique_ptr<Op> make_experts(ExpertsSpec spec);

struct LatentSpec {
    Value *q, *c, *out;
    LatentLayer kv;
    int group;                // of the state
    int heads;
    NormWeights norm;         // of the latent, (rank,)
    std::vector<const Matrix*> k_b, v_b;  // of each head: (rank, nope) and (value, rank)
    int turned;               // entries of a query's end, and of a row's, that turn: all or none
    bool halves;
    size_t angles_at;
    float scale;
};
std::unique_ptr<Op> make_latent(LatentSpec spec);

struct DeltaSpec {
    Value *q, *k, *v, *decay, *beta, *gate, *out;
    DeltaLayer memory;
    int group;                // of the state
    std::vector<float> taps;  // (heads, [q, k, v], taps, dim), the oldest row's first
    std::vector<float> rate, shift;  // of each head, and of each of its channels
    bool bounded;
    float lowest, unit_eps;
    NormWeights norm;         // of a head's output, (dim,)
};
std::unique_ptr<Op> make_delta(DeltaSpec spec);

}  // namespace phaseline
