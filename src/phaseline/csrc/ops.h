// The operations of a plan. Each spreads its work over the team in tiles and ends with a barrier.
#pragma once
#include "plan.h"

namespace phaseline {

// body(row) for rows r0 .. r1-1 of cheap row-wise work, in chunks.
template <class F> void spread_rows(const Run& run, int r0, int r1, F body) {
    constexpr int ROW_CHUNK = 8;
    run.team.spread((r1 - r0 + ROW_CHUNK - 1) / ROW_CHUNK, [&](long task) {
        const int end = std::min(r1, r0 + int(task + 1) * ROW_CHUNK);
        for (int row = r0 + int(task) * ROW_CHUNK; row < end; row++) body(row);
    });
}

std::unique_ptr<Op> make_embed(const Matrix& table, Value& out);
std::unique_ptr<Op> make_select(Value& x, Value& out);
std::unique_ptr<Op> make_rope(Value& x, Value& out, int heads, int head_dim, int dims, int angles_at);

struct LinearSpec {
    Value* x;
    std::vector<float> norm;  // empty: none
    float eps = 0;
    std::vector<const Matrix*> weights;
    std::vector<Value*> outs;
    bool gate = false;        // two weights, one output: silu(first) * second
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
    std::vector<float> norm;         // empty: none
    float eps;
    const Matrix *gate, *up, *down;  // of all experts, one below the other
    int experts;
    Value* residual;                 // null: none
};
std::unique_ptr<Op> make_experts(ExpertsSpec spec);

}  // namespace phaseline
