// The operations of a plan. Each spreads its work over the team in tiles and ends with a barrier.
#pragma once
#include "plan.h"

namespace phaseline {

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
    int heads;
    float scale;
};
std::unique_ptr<Op> make_attend(AttendSpec spec);

}  // namespace phaseline
