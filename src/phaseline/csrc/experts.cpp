// Routed experts: rows are grouped by expert, so that a step reads each expert's weights once and spends them on every
// row that chose it.
#include <algorithm>
#include <cstring>

#include "ops.h"

namespace phaseline {

namespace {

constexpr int ROW_CHUNK = 8;  // rows per task of cheap row-wise work

class Route : public Op {
  public:
    explicit Route(RouteOp spec) : s_(std::move(spec)) { s_.rule.bias = s_.bias.empty() ? nullptr : s_.bias.data(); }
    size_t scratch_floats() const override { return route_scratch(s_.rule.experts); }

    void run(const Run& run) override {
        run.spread((run.r1 - run.r0 + ROW_CHUNK - 1) / ROW_CHUNK, [&](long task) {
            const int first = run.r0 + int(task) * ROW_CHUNK, end = std::min(run.r1, first + ROW_CHUNK);
            for (int row = first; row < end; row++)
                run.kernels.route(s_.rule, s_.logits->in().row(row), s_.chosen->rows.row(row), s_.shares->rows.row(row),
                                  run.scratch);
        });
    }

  private:
    RouteOp s_;
};

// Rows prepared in the forms that some weights take, one form after the other in memory.
struct Forms {
    bool quant = false, plain = false;
    size_t quant_bytes = 0, plain_bytes = 0;  // of a row

    Forms(int cols, std::initializer_list<const Matrix*> weights) {
        for (const Matrix* w : weights) (is_plain(w->format.codes) ? plain : quant) = true;
        if (quant) quant_bytes = size_t(cols) / BLOCK * sizeof(QuantBlock);
        if (plain) plain_bytes = size_t(cols) * sizeof(float);
    }
    size_t row_bytes() const { return quant_bytes + plain_bytes; }
    Prepared form(uint8_t* at, int rows, bool is_plain) const {
        return is_plain ? Prepared{at + size_t(rows) * quant_bytes, plain_bytes, true} : Prepared{at, quant_bytes, false};
    }
    // body(prepared) for each form in use.
    template <class F> void each(uint8_t* at, int rows, F body) const {
        if (quant) body(form(at, rows, false));
        if (plain) body(form(at, rows, true));
    }
};

class Experts : public Op {
  public:
    explicit Experts(ExpertsSpec spec)
        : s_(std::move(spec)), active_(int(s_.chosen->rows.stride)), ff_(s_.gate->rows / s_.experts),
          width_(s_.down->rows / s_.experts), in_(s_.gate->cols, {s_.gate, s_.up}), middle_(ff_, {s_.down}),
          seen_(size_t(s_.experts)) {}

    size_t prepared_row_bytes() const override {
        return std::max(asked_bytes(), answer_bytes()) + size_t(active_) * middle_.row_bytes();
    }
    size_t scratch_floats() const override { return size_t(s_.gate->cols); }
    void begin() override {
        reads_ = {};
        std::fill(seen_.begin(), seen_.end(), false);
    }
    const ExpertReads* expert_reads() const override { return &reads_; }

    void run(const Run& run) override {
        if (!run.experts_by_row) return rows(run, run.r0, run.r1);
        for (int row = run.r0; row < run.r1; row++) rows(run, row, row + 1);
    }

  private:
    static constexpr int TASKS_PER_THREAD = 8;  // enough that a slow core's last task delays little
    static constexpr int PANELS_AT_ONCE = 4;

    // A tile: up to tile_rows routed rows of one expert, at `row` of their order.
    struct Tile {
        int row, count;
    };
    struct Group {
        int expert, first_tile, end_tile;
    };

    // Memory, per row of the step: prepared rows, alone and as their experts' tiles, and what lies between gate and
    // down; the answers take its place. Behind both: that middle, prepared.
    size_t asked_bytes() const {
        return (1 + size_t(active_)) * in_.row_bytes() + size_t(active_) * size_t(ff_) * sizeof(float);
    }
    size_t answer_bytes() const { return size_t(active_) * size_t(width_) * sizeof(float); }

    void rows(const Run& run, int r0, int r1) {
        const int n = r1 - r0, routed = n * active_, tile_rows = run.kernels.tile_rows;
        uint8_t* alone = run.prepared;
        uint8_t* together = alone + size_t(n) * in_.row_bytes();
        const RowsOut middle{reinterpret_cast<float*>(together + size_t(routed) * in_.row_bytes()), size_t(ff_)};
        const RowsOut answers{reinterpret_cast<float*>(run.prepared), size_t(width_)};
        uint8_t* ready = run.prepared + size_t(n) * std::max(asked_bytes(), answer_bytes());
        const Norm norm = s_.norm.view();

        const long chunks = (n + ROW_CHUNK - 1) / ROW_CHUNK;
        run.spread(chunks ? 1 + chunks : 0, [&](long task) {
            if (task == 0) return group(r0, r1, tile_rows);
            const int end = std::min(n, int(task) * ROW_CHUNK);
            for (int row = (int(task) - 1) * ROW_CHUNK; row < end; row++)
                in_.each(alone, n, [&](const Prepared& into) {
                    const RowsIn x{s_.x->in().row(r0), s_.x->rows.stride};
                    run.kernels.prepare(x, row, 1, s_.gate->cols, norm, into, run.scratch);
                });
        });
        if (!n) return;
        if (n > 1) {  // rows of one expert move side by side; a single one is read where it lies
            run.spread(long(tiles_.size()), [&](long t) {
                const Tile tile = tiles_[size_t(t)];
                if (tile.count == 1) return;
                if (in_.quant) gather<QuantBlock>(in_.form(alone, n, false), in_.form(together, routed, false), tile, r0);
                if (in_.plain) gather<float>(in_.form(alone, n, true), in_.form(together, routed, true), tile, r0);
            });
        }
        products(run, *s_.up, ff_ / PANEL, [&](const Tile& tile, int expert, int p0, int p1) {
            const auto form = [&](const Matrix* m) {
                const bool plain = is_plain(m->format.codes);
                if (tile.count > 1) return in_.form(together, routed, plain);
                Prepared own = in_.form(alone, n, plain);
                own.data += (long(order_[size_t(tile.row)]) - r0 - tile.row) * long(own.row_bytes);
                return own;
            };
            const Product p{.input = form(s_.up), .weight = s_.up, .out = middle, .first = expert * ff_, .gate = s_.gate,
                            .gate_input = form(s_.gate), .gate_act = s_.act};
            run.kernels.product(p, tile.row, tile.count, p0, p1);
        });
        run.spread(long(tiles_.size()), [&](long t) {
            const Tile tile = tiles_[size_t(t)];
            middle_.each(ready, routed, [&](const Prepared& into) {
                run.kernels.prepare({middle.data, middle.stride}, tile.row, tile.count, ff_, {}, into, run.scratch);
            });
        });
        products(run, *s_.down, width_ / PANEL, [&](const Tile& tile, int expert, int p0, int p1) {
            const Prepared input = middle_.form(ready, routed, middle_.plain);
            const Product p{.input = input, .weight = s_.down, .out = answers, .first = expert * width_};
            run.kernels.product(p, tile.row, tile.count, p0, p1);
        });
        run.spread(chunks, [&](long task) {
            const int end = std::min(n, int(task + 1) * ROW_CHUNK);
            for (int row = int(task) * ROW_CHUNK; row < end; row++) {
                const Combination c{answers.data, answers.stride, places_.data() + size_t(row) * size_t(active_),
                                    s_.shares->in().row(r0 + row), active_, width_,
                                    s_.residual ? s_.residual->in().row(r0 + row) : nullptr};
                run.kernels.combine(c, s_.out->rows.row(r0 + row));
            }
        });
    }

    // Sorts the rows' choices by expert and cuts each expert's into tiles.
    void group(int r0, int r1, int tile_rows) {
        const auto expert_of = [&](int row, int j) { return size_t(s_.chosen->in().row(row)[j]); };
        starts_.assign(size_t(s_.experts) + 1, 0);
        for (int row = r0; row < r1; row++)
            for (int j = 0; j < active_; j++) starts_[expert_of(row, j) + 1]++;
        groups_.clear(), tiles_.clear();
        for (int e = 0; e < s_.experts; e++) {
            const int count = starts_[size_t(e) + 1], first = starts_[size_t(e)];
            starts_[size_t(e) + 1] += first;
            if (!count) continue;
            const int first_tile = int(tiles_.size());
            for (int at = 0; at < count; at += tile_rows) tiles_.push_back({first + at, std::min(tile_rows, count - at)});
            groups_.push_back({e, first_tile, int(tiles_.size())});
            if (!seen_[size_t(e)]) seen_[size_t(e)] = true, reads_.distinct++;
            reads_.reads++;
        }
        order_.resize(size_t(r1 - r0) * size_t(active_));
        places_.resize(order_.size());
        for (int row = r0, i = 0; row < r1; row++)
            for (int j = 0; j < active_; j++, i++) {
                const int place = starts_[expert_of(row, j)]++;
                order_[size_t(place)] = row;
                places_[size_t(i)] = place;
            }
    }

    // Rows of a tile, prepared one by one, as a tile's: element by element side by side.
    template <class T> void gather(const Prepared& from, const Prepared& to, const Tile& tile, int r0) const {
        const size_t elements = from.row_bytes / sizeof(T);
        T* out = reinterpret_cast<T*>(to.tile(tile.row));
        for (int r = 0; r < tile.count; r++) {
            const T* in = reinterpret_cast<const T*>(from.tile(order_[size_t(tile.row + r)] - r0));
            for (size_t i = 0; i < elements; i++) memcpy(out + i * size_t(tile.count) + r, in + i, sizeof(T));
        }
    }

    // body(tile, expert, p0, p1) for all tiles and panels of all groups. A task is one expert's group of panels: their
    // weights come from memory once and stay near while its tiles pass.
    template <class F> void products(const Run& run, const Matrix& w, int panels, F body) const {
        const int groups = int(groups_.size());
        const int shares = std::max(1, groups * panels / (TASKS_PER_THREAD * run.team.size()));
        const int at_once = std::min(panels, int(tiles_.size()) > groups ? std::min(PANELS_AT_ONCE, shares) : shares);
        const int parts = (panels + at_once - 1) / at_once;
        run.spread(long(groups) * parts, [&](long task) {
            const Group& g = groups_[size_t(task / parts)];
            const int base = g.expert * (w.panels / s_.experts), part = int(task % parts) * at_once;
            const int p0 = base + part, p1 = base + std::min(panels, part + at_once);
            for (int t = g.first_tile; t < g.end_tile; t++) body(tiles_[size_t(t)], g.expert, p0, p1);
        });
    }

    ExpertsSpec s_;
    int active_, ff_, width_;
    Forms in_, middle_;
    // Of the rows being computed: routed rows in order of expert, where each row's choices stand in it, and its cuts.
    std::vector<int32_t> starts_, order_, places_;
    std::vector<Group> groups_;
    std::vector<Tile> tiles_;
    std::vector<bool> seen_;
    ExpertReads reads_;
};

}  // namespace

std::unique_ptr<Op> make_route(RouteOp spec) { return std::make_unique<Route>(std::move(spec)); }
std::unique_ptr<Op> make_experts(ExpertsSpec spec) { return std::make_unique<Experts>(std::move(spec)); }

}  // namespace phaseline
