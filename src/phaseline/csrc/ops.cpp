#include "ops.h"

#include <algorithm>
#include <cstring>

namespace phaseline {

namespace {

constexpr int ROW_CHUNK = 8;  // rows per task of cheap row-wise work

// body(row) for rows r0 .. r1-1, in chunks.
template <class F> void spread_rows(const Run& run, int r0, int r1, F body) {
    run.team.spread((r1 - r0 + ROW_CHUNK - 1) / ROW_CHUNK, [&](long task) {
        const int end = std::min(r1, r0 + int(task + 1) * ROW_CHUNK);
        for (int row = r0 + int(task) * ROW_CHUNK; row < end; row++) body(row);
    });
}

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

class Attend : public Op {
  public:
    explicit Attend(AttendSpec spec) : s_(spec), group_(spec.heads / spec.kv.kv_heads), tile_floats_(size_t(MAX_TILE) * size_t(spec.kv.padded_dim)) {}

    // The tile's scratch, then two unfinished softmaxes.
    size_t scratch_floats() const override { return attend_scratch(s_.kv.padded_dim) + 2 * tile_floats_; }

    void run(const Run& run) override {
        spread_rows(run, run.r0, run.r1, [&](int row) {
            const Segment& s = run.row_segments[size_t(row)];
            const int position = s.start + (row - s.first), page = pages_of(run, s)[position / PAGE];
            run.kernels.store_kv(s_.kv, s_.k->in().row(row), s_.v->in().row(row), page, position % PAGE);
        });
        // Every thread lists the same tiles: cheaper than sharing a list.
        long tiles = 0;
        each_piece(run, [&](const Segment&, int, int queries) { tiles += count_tiles(run, queries); });
        if (tiles * s_.kv.kv_heads >= TASKS_PER_THREAD * run.team.size()) whole_tiles(run, tiles);
        else split_tiles(run, tiles);
    }

  private:
    static constexpr long TASKS_PER_THREAD = 4;

    const int32_t* pages_of(const Run& run, const Segment& s) const {
        return run.step.pages + size_t(s.slot) * run.step.max_pages;
    }
    long count_tiles(const Run& run, int queries) const {
        return (queries + run.kernels.tile_rows - 1) / run.kernels.tile_rows;
    }

    // body(segment, first row of the piece, its queries per key head) for each segment's part within r0 .. r1-1.
    template <class F> void each_piece(const Run& run, F body) const {
        for (int i = 0; i < run.step.segment_count; i++) {
            const Segment& s = run.step.segments[i];
            const int a = std::max(run.r0, s.first), b = std::min(run.r1, s.first + s.rows);
            if (a < b) body(s, a, (b - a) * group_);
        }
    }

    // Tile `index` of the run, for one key head.
    QueryTile find_tile(const Run& run, long index, int kv_head) const {
        QueryTile t{};
        each_piece(run, [&](const Segment& s, int row, int queries) {
            const long n = count_tiles(run, queries);
            if (index >= 0 && index < n) {
                const int first = int(index) * run.kernels.tile_rows;
                t = {s_.q->in(), s_.out->rows, pages_of(run, s), row, s.start + (row - s.first), group_, kv_head, first,
                     std::min(run.kernels.tile_rows, queries - first), s_.scale};
            }
            index -= n;
        });
        return t;
    }

    int splits_of(const QueryTile& t) const {
        const int last = t.start + (t.first + t.count - 1) / group_ + 1;
        return (last + SPLIT - 1) / SPLIT;
    }

    // Many tiles: each task reads its whole context.
    void whole_tiles(const Run& run, long tiles) const {
        float* scratch = run.scratch;
        Partial total, next;
        total.out = scratch + attend_scratch(s_.kv.padded_dim);
        next.out = total.out + tile_floats_;
        run.team.spread(tiles * s_.kv.kv_heads, [&](long task) {
            // Later tiles read more: they go first, so that no long one is left for the end.
            const QueryTile t = find_tile(run, tiles - 1 - task / s_.kv.kv_heads, int(task % s_.kv.kv_heads));
            run.kernels.attend(s_.kv, t, 0, total, scratch);
            for (int split = 1; split < splits_of(t); split++) {
                run.kernels.attend(s_.kv, t, split, next, scratch);
                run.kernels.merge(total, next, t.count, s_.kv.padded_dim);
            }
            run.kernels.finish(s_.kv, t, total);
        });
    }

    // Few tiles: the splits of a context are spread too, and merged in the same order afterwards.
    void split_tiles(const Run& run, long tiles) {
        const long heads = s_.kv.kv_heads;
        int splits = 1;
        for (long i = 0; i < tiles; i++) splits = std::max(splits, splits_of(find_tile(run, i, 0)));
        const long units = tiles * heads;
        reserve(run, size_t(units) * size_t(splits));
        run.team.spread(units * splits, [&](long task) {
            const QueryTile t = find_tile(run, task / splits / heads, int(task / splits % heads));
            const int split = int(task % splits);
            if (split < splits_of(t)) run.kernels.attend(s_.kv, t, split, partials_[size_t(task)], run.scratch);
        });
        run.team.spread(units, [&](long unit) {
            const QueryTile t = find_tile(run, unit / heads, int(unit % heads));
            Partial& total = partials_[size_t(unit * splits)];
            for (int split = 1; split < splits_of(t); split++)
                run.kernels.merge(total, partials_[size_t(unit * splits + split)], t.count, s_.kv.padded_dim);
            run.kernels.finish(s_.kv, t, total);
        });
    }

    // One thread makes room, the others wait.
    void reserve(const Run& run, size_t count) {
        run.team.spread(1, [&](long) {
            if (partials_.size() >= count) return;
            partial_floats_.resize(count * tile_floats_);
            partials_.resize(count);
            for (size_t i = 0; i < count; i++) partials_[i].out = partial_floats_.data() + i * tile_floats_;
        });
    }

    AttendSpec s_;
    int group_;
    size_t tile_floats_;
    std::vector<Partial> partials_;
    std::vector<float> partial_floats_;
};

}  // namespace

std::unique_ptr<Op> make_embed(const Matrix& table, Value& out) { return std::make_unique<Embed>(table, out); }
std::unique_ptr<Op> make_select(Value& x, Value& out) { return std::make_unique<Select>(x, out); }
std::unique_ptr<Op> make_rope(Value& x, Value& out, int heads, int head_dim, int dims, int angles_at) {
    return std::make_unique<Rope>(x, out, heads, head_dim, dims, angles_at);
}
std::unique_ptr<Op> make_linear(LinearSpec spec) { return std::make_unique<Linear>(std::move(spec)); }
std::unique_ptr<Op> make_attend(AttendSpec spec) { return std::make_unique<Attend>(spec); }

}  // namespace phaseline
