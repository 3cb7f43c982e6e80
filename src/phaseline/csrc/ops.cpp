#include "ops.h"

#include <algorithm>
#include <cstring>

namespace phaseline {

namespace {

class Embed : public Op {
  public:
    Embed(const Matrix& table, Value& out) : table_(table), out_(out) {}
    void run(const Run& run) override {
        spread_rows(run, run.r0, run.r1, [&](int row) { table_.unpack_row(run.step.tokens[row], out_.rows.row(row)); });
    }

  private:
    const Matrix& table_;
    Value& out_;
};

class Select : public Op {
  public:
    Select(Value& x, Value& out) : x_(x), out_(out) {}
    void run(const Run& run) override {
        spread_rows(run, 0, run.step.wanted_count, [&](int i) {
            memcpy(out_.rows.row(i), x_.in().row(run.step.wanted[i]), x_.rows.stride * sizeof(float));
        });
    }

  private:
    Value &x_, &out_;
};

class Rope : public Op {
  public:
    Rope(Value& x, Value& out, int heads, int head_dim, int dims, int at)
        : x_(x), out_(out), heads_(heads), head_dim_(head_dim), dims_(dims), at_(size_t(at)) {}
    void run(const Run& run) override {
        spread_rows(run, run.r0, run.r1, [&](int row) {
            const float* angles = run.angles.data() + size_t(row) * run.angle_stride + at_;
            run.kernels.rope(x_.in().row(row), out_.rows.row(row), angles, heads_, head_dim_, dims_);
        });
    }

  private:
    Value &x_, &out_;
    int heads_, head_dim_, dims_;
    size_t at_;
};

class Linear : public Op {
  public:
    explicit Linear(LinearSpec spec) : s_(std::move(spec)) {
        // A plain and a quantised weight may share one input: it is then prepared in both forms, side by side.
        const size_t cols = size_t(s_.weights[0]->cols);
        for (const Matrix* w : s_.weights) (is_plain(w->format.codes) ? plain_ : quant_) = true;
        quant_bytes_ = quant_ ? cols / BLOCK * sizeof(QuantBlock) : 0;
        plain_bytes_ = plain_ ? cols * sizeof(float) : 0;
        const size_t products = s_.gate ? 1 : s_.weights.size();
        for (size_t i = 0; i < products; i++) {
            first_panel_.push_back(panels_);
            panels_ += s_.weights[i]->panels;
        }
    }

    size_t prepared_row_bytes() const override { return quant_bytes_ + plain_bytes_; }
    size_t scratch_floats() const override { return size_t(s_.weights[0]->cols); }

    void run(const Run& run) override {
        const int r0 = s_.x->wanted ? 0 : run.r0, r1 = s_.x->wanted ? run.step.wanted_count : run.r1;
        const int rows = r1 - r0, tile = run.kernels.tile_rows, tiles = (rows + tile - 1) / tile;
        const Prepared quant{run.prepared - size_t(r0) * quant_bytes_, quant_bytes_, false};
        const Prepared plain{run.prepared + size_t(rows) * quant_bytes_ - size_t(r0) * plain_bytes_, plain_bytes_, true};
        const Norm norm{s_.norm.empty() ? nullptr : s_.norm.data(), s_.eps};
        run.team.spread(tiles, [&](long t) {
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
        run.team.spread(long(panel_groups) * tile_groups, [&](long task) {
            const int t0 = int(task / panel_groups) * group_tiles, t1 = std::min(tiles, t0 + group_tiles);
            const int p0 = int(task % panel_groups) * group_panels, p1 = std::min(panels_, p0 + group_panels);
            for (int t = t0; t < t1; t++) {
                const int row = r0 + t * tile;
                panels(run, quant, plain, row, std::min(tile, r1 - row), p0, p1);
            }
        });
    }

  private:
    static constexpr size_t ACTIVATION_BYTES = 384 << 10;
    static constexpr int TASKS_PER_THREAD = 8;  // enough that a slow core's last task delays little
    static constexpr int PANELS_AT_ONCE = 4;

    // Panels p0 .. p1-1, counted over all weights, of one tile.
    void panels(const Run& run, const Prepared& quant, const Prepared& plain, int row, int count, int p0, int p1) const {
        for (size_t i = 0; i < first_panel_.size(); i++) {
            const Matrix* w = s_.weights[s_.gate ? 1 : i];
            const int a = std::max(0, p0 - first_panel_[i]), b = std::min(w->panels, p1 - first_panel_[i]);
            if (a >= b) continue;
            const auto form = [&](const Matrix* m) { return m && is_plain(m->format.codes) ? plain : quant; };
            const Matrix* gate = s_.gate ? s_.weights[0] : nullptr;
            const Product p{form(w), w, form(gate), gate, s_.outs[i]->rows,
                            s_.residual ? s_.residual->in() : RowsIn{nullptr, 0}};
            run.kernels.product(p, row, count, a, b);
        }
    }

    LinearSpec s_;
    bool plain_ = false, quant_ = false;
    size_t quant_bytes_, plain_bytes_;
    std::vector<int> first_panel_;
    int panels_ = 0;
};

}  // namespace

std::unique_ptr<Op> make_embed(const Matrix& table, Value& out) { return std::make_unique<Embed>(table, out); }
std::unique_ptr<Op> make_select(Value& x, Value& out) { return std::make_unique<Select>(x, out); }
std::unique_ptr<Op> make_rope(Value& x, Value& out, int heads, int head_dim, int dims, int angles_at) {
    return std::make_unique<Rope>(x, out, heads, head_dim, dims, angles_at);
}
std::unique_ptr<Op> make_linear(LinearSpec spec) { return std::make_unique<Linear>(std::move(spec)); }

}  // namespace phaseline
