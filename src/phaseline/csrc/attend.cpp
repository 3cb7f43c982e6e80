// Attention as an operation: stores the rows' keys and values, then spreads tiles of queries over the team.
#include "ops.h"

namespace phaseline {

namespace {

class Attend : public Op {
  public:
    explicit Attend(AttendSpec spec)
        : s_(spec), group_(spec.heads / spec.kv.kv_heads), tile_floats_(size_t(MAX_TILE) * size_t(spec.kv.padded_dim)) {}

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

    const int32_t* pages_of(const Run& run, const Segment& s) const { return run.step.pages_of(s_.group, s.slot); }
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
                     std::min(run.kernels.tile_rows, queries - first), s_.window, s_.scale};
            }
            index -= n;
        });
        return t;
    }

    // The splits that some query of the tile reads: first .. last - 1.
    struct Splits {
        int first, last;
    };
    Splits splits_of(const QueryTile& t) const {
        const int low = t.start + t.first / group_ + 1, high = t.start + (t.first + t.count - 1) / group_ + 1;
        return {std::max(0, low - s_.window) / SPLIT, (high + SPLIT - 1) / SPLIT};
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
            const Splits splits = splits_of(t);
            run.kernels.attend(s_.kv, t, splits.first, total, scratch);
            for (int split = splits.first + 1; split < splits.last; split++) {
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
        for (long i = 0; i < tiles; i++) {
            const Splits of = splits_of(find_tile(run, i, 0));
            splits = std::max(splits, of.last - of.first);
        }
        const long units = tiles * heads;
        reserve(run, size_t(units) * size_t(splits));
        run.team.spread(units * splits, [&](long task) {
            const QueryTile t = find_tile(run, task / splits / heads, int(task / splits % heads));
            const Splits of = splits_of(t);
            const int split = of.first + int(task % splits);
            if (split < of.last) run.kernels.attend(s_.kv, t, split, partials_[size_t(task)], run.scratch);
        });
        run.team.spread(units, [&](long unit) {
            const QueryTile t = find_tile(run, unit / heads, int(unit % heads));
            Partial& total = partials_[size_t(unit * splits)];
            const Splits of = splits_of(t);
            for (int i = 1; i < of.last - of.first; i++)
                run.kernels.merge(total, partials_[size_t(unit * splits + i)], t.count, s_.kv.padded_dim);
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

std::unique_ptr<Op> make_attend(AttendSpec spec) { return std::make_unique<Attend>(spec); }

}  // namespace phaseline
