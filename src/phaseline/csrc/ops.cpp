#include "ops.h"

#include <algorithm>
#include <cstring>

namespace phaseline {

namespace {

class Embed : public Op {
  public:
    explicit Embed(EmbedSpec spec) : s_(spec) {}
    size_t scratch_floats() const override { return s_.positions ? size_t(s_.table->cols) : 0; }
    void run(const Run& run) override {
        spread_rows(run, run.r0, run.r1, [&](int row) {
            float* out = s_.out->rows.row(row);
            s_.table->unpack_row(run.step.tokens[size_t(row)], out);
            if (s_.scale != 1)
                for (int i = 0; i < s_.table->cols; i++) out[i] *= s_.scale;
            if (!s_.positions) return;
            const Segment& s = run.row_segments[size_t(row)];
            s_.positions->unpack_row(s.start + (row - s.first), run.scratch);
            for (int i = 0; i < s_.table->cols; i++) out[i] += run.scratch[i];
        });
    }

  private:
    EmbedSpec s_;
};

class Select : public Op {
  public:
    Select(Value& x, Value& out) : x_(x), out_(out) {}
    void run(const Run& run) override {
        spread_rows(run, 0, run.step.wanted_rows(), [&](int i) {
            memcpy(out_.rows.row(i), x_.in().row(run.step.wanted[size_t(i)]), x_.rows.stride * sizeof(float));
        });
    }

  private:
    Value &x_, &out_;
};

class Normalise : public Op {
  public:
    Normalise(Value& x, Value& out, NormWeights norm, Value* residual)
        : x_(x), out_(out), norm_(std::move(norm)), residual_(residual) {}
    void run(const Run& run) override {
        const int r0 = x_.wanted ? 0 : run.r0, r1 = x_.wanted ? run.step.wanted_rows() : run.r1;
        const int width = int(norm_.weight.size()), groups = int(x_.rows.stride) / width;
        spread_rows(run, r0, r1, [&](int row) {
            const float* residual = residual_ ? residual_->in().row(row) : nullptr;
            run.kernels.normalise(x_.in().row(row), residual, out_.rows.row(row), groups, width, norm_.view());
        });
    }

  private:
    Value &x_, &out_;
    NormWeights norm_;
    Value* residual_;
};

class Gate : public Op {
  public:
    Gate(Value& x, Value& gate, Value& out) : x_(x), gate_(gate), out_(out) {}
    void run(const Run& run) override {
        spread_rows(run, run.r0, run.r1, [&](int row) {
            memcpy(out_.rows.row(row), x_.in().row(row), x_.rows.stride * sizeof(float));
            run.kernels.gate(gate_.in().row(row), out_.rows.row(row), int(x_.rows.stride));
        });
    }

  private:
    Value &x_, &gate_, &out_;
};

class ResidualMix : public Op {
  public:
    explicit ResidualMix(MixSpec spec) : s_(std::move(spec)) {}
    void run(const Run& run) override {
        const bool wanted = s_.out->wanted;
        const int r0 = wanted ? 0 : run.r0, r1 = wanted ? run.step.wanted_rows() : run.r1;
        spread_rows(run, r0, r1, [&](int row) {
            RowMix m{{}, int(s_.rows.size()), int(s_.weight.size()), s_.weight.data(), s_.eps};
            for (int i = 0; i < m.count; i++) m.rows[i] = s_.rows[size_t(i)]->in().row(row);
            run.kernels.residual_mix(m, s_.out->rows.row(row));
        });
    }

  private:
    MixSpec s_;
};

class Rope : public Op {
  public:
    explicit Rope(RopeSpec spec) : s_(spec) {}
    void run(const Run& run) override {
        const int heads = int(s_.x->rows.stride) / s_.head_dim;
        spread_rows(run, run.r0, run.r1, [&](int row) {
            const float* angles = run.angles.data() + size_t(row) * run.angle_stride + s_.angles_at;
            run.kernels.rope(s_.x->in().row(row), s_.out->rows.row(row), angles, heads, s_.head_dim, s_.dims, s_.halves);
        });
    }

  private:
    RopeSpec s_;
};

class Linear : public Op {
  public:
    explicit Linear(LinearSpec spec) : s_(std::move(spec)) {
        // A plain and a quantised weight may share one input: it is then prepared in both forms, side by side.
        const size_t cols = size_t(s_.weights[0]->cols);
        for (const Matrix* w : s_.weights) (is_plain(w->format.codes) ? plain_ : quant_) = true;
        quant_bytes_ = quant_ ? cols / BLOCK * sizeof(QuantBlock) : 0;
        plain_bytes_ = plain_ ? cols * sizeof(float) : 0;
        s_.biases.resize(s_.weights.size());
        for (size_t i = 0; i < s_.weights.size(); i++)
            if (!s_.biases[i].empty()) s_.biases[i].resize(size_t(s_.weights[i]->panels) * PANEL);
        size_t out = 0;
        for (size_t i = gated() ? 1 : 0; i < s_.weights.size(); i++)
            for (int first = 0; first < s_.weights[i]->rows; out++) {
                const int rows = int(s_.outs[out]->rows.stride), panels = (rows + PANEL - 1) / PANEL;
                parts_.push_back({i, first, panels_, panels, s_.outs[out]});
                panels_ += panels;
                first += rows;
            }
    }

    size_t prepared_row_bytes() const override { return quant_bytes_ + plain_bytes_; }
    size_t scratch_floats() const override { return size_t(s_.weights[0]->cols); }

    void run(const Run& run) override {
        const int r0 = s_.x->wanted ? 0 : run.r0, r1 = s_.x->wanted ? run.step.wanted_rows() : run.r1;
        const int rows = r1 - r0, tile = run.kernels.tile_rows, tiles = (rows + tile - 1) / tile;
        const Prepared quant{run.prepared - size_t(r0) * quant_bytes_, quant_bytes_, false};
        const Prepared plain{run.prepared + size_t(rows) * quant_bytes_ - size_t(r0) * plain_bytes_, plain_bytes_, true};
        const Norm norm = s_.norm.view();
        run.spread(tiles, [&](long t) {
            const int row = r0 + int(t) * tile, count = std::min(tile, r1 - row), cols = s_.weights[0]->cols;
            if (quant_) run.kernels.prepare(s_.x->in(), row, count, cols, norm, quant, run.scratch);
            if (plain_) run.kernels.prepare(s_.x->in(), row, count, cols, norm, plain, run.scratch);
        });

        // A task is a group of panels times a group of tiles whose activations stay in the second-level cache.
        const int group_tiles = std::max(1, int(ACTIVATION_BYTES / (size_t(tile) * prepared_row_bytes())));
        const int tile_groups = (tiles + group_tiles - 1) / group_tiles;
        const int shares = std::max(1, panels_ * std::max(1, tile_groups) / (TASKS_PER_THREAD * run.team.size()));
        const int group_panels = tiles > 1 ? std::min(PANELS_AT_ONCE, shares) : shares;
        const int panel_groups = (panels_ + group_panels - 1) / group_panels;
        run.spread(long(panel_groups) * tile_groups, [&](long task) {
            const int t0 = int(task / panel_groups) * group_tiles, t1 = std::min(tiles, t0 + group_tiles);
            const int p0 = int(task % panel_groups) * group_panels, p1 = std::min(panels_, p0 + group_panels);
            for (int t = t0; t < t1; t++) {
                const int row = r0 + t * tile;
                panels(run, quant, plain, row, std::min(tile, r1 - row), p0, p1, t == t0);
            }
        });
    }

  private:
    static constexpr size_t ACTIVATION_BYTES = 384 << 10;
    static constexpr int TASKS_PER_THREAD = 8;  // enough that a slow core's last task delays little
    static constexpr int PANELS_AT_ONCE = 4;

    // What one output takes from one weight: rows `first` .., which start on a panel. Panels are counted over all parts.
    struct Part {
        size_t weight;
        int first, first_panel, panels;
        Value* out;
    };

    bool gated() const { return s_.gate != Act::NONE; }

    // Panels p0 .. p1-1 of one tile.
    void panels(const Run& run, const Prepared& quant, const Prepared& plain, int row, int count, int p0, int p1,
                bool cold) const {
        const auto form = [&](const Matrix* m) { return m && is_plain(m->format.codes) ? plain : quant; };
        const auto bias = [&](size_t i) { return s_.biases[i].empty() ? nullptr : s_.biases[i].data(); };
        const Matrix* gate = gated() ? s_.weights[0] : nullptr;
        for (const Part& part : parts_) {
            const int a = std::max(0, p0 - part.first_panel), b = std::min(part.panels, p1 - part.first_panel);
            if (a >= b) continue;
            const Matrix* w = s_.weights[part.weight];
            const Product p{.input = form(w), .weight = w, .out = part.out->rows, .first = part.first,
                            .residual = s_.residual ? s_.residual->in() : RowsIn{nullptr, 0}, .bias = bias(part.weight),
                            .act = s_.act, .gate = gate, .gate_input = form(gate), .gate_bias = bias(0), .gate_act = s_.gate,
                            .cold = cold};
            run.kernels.product(p, row, count, part.first / PANEL + a, part.first / PANEL + b);
        }
    }

    LinearSpec s_;
    bool plain_ = false, quant_ = false;
    size_t quant_bytes_, plain_bytes_;
    std::vector<Part> parts_;
    int panels_ = 0;
};

}  // namespace

std::unique_ptr<Op> make_embed(EmbedSpec spec) { return std::make_unique<Embed>(spec); }
std::unique_ptr<Op> make_select(Value& x, Value& out) { return std::make_unique<Select>(x, out); }
std::unique_ptr<Op> make_normalise(Value& x, Value& out, NormWeights norm, Value* residual) {
    return std::make_unique<Normalise>(x, out, std::move(norm), residual);
}
std::unique_ptr<Op> make_gate(Value& x, Value& gate, Value& out) { return std::make_unique<Gate>(x, gate, out); }
std::unique_ptr<Op> make_residual_mix(MixSpec spec) { return std::make_unique<ResidualMix>(std::move(spec)); }
std::unique_ptr<Op> make_rope(RopeSpec spec) { return std::make_unique<Rope>(spec); }
std::unique_ptr<Op> make_linear(LinearSpec spec) { return std::make_unique<Linear>(std::move(spec)); }

}  // namespace phaseline
