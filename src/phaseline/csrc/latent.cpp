// Latent attention: queries meet the stored latents in the latents' own space (absorbed form), so that one stored row
// serves all heads and nothing is ever expanded. One form for chunks and decodes: the bits are the same in both.
#include <algorithm>

#include "ops.h"
#include "tiles.h"

namespace phaseline {

namespace {

class LatentAttend : public Op {
  public:
    explicit LatentAttend(LatentSpec spec)
        : s_(std::move(spec)), rank_(s_.kv.rank), dims_(s_.kv.width - rank_), q_dim_(s_.k_b[0]->cols + dims_) {}

    // A block of rows at a time stays in cache: its queries and its latents.
    size_t prepared_bytes() const override { return size_t(block_rows()) * row_floats() * sizeof(float); }

    // The tile's scratch, unfinished softmaxes, one head's prepared input.
    size_t scratch_floats() const override {
        const size_t input = size_t(MAX_TILE) * size_t(std::max(q_dim_, rank_));  // quantised it takes less
        return attend_scratch(s_.kv.padded_width()) + tiles_scratch(s_.kv.padded_rank()) + input;
    }

    void run(const Run& run) override {
        spread_rows(run, run.r0, run.r1, [&](int row) { store(run, row); });
        for (int r0 = run.r0; r0 < run.r1; r0 += block_rows()) block(run, r0, std::min(run.r1, r0 + block_rows()));
    }

  private:
    static constexpr size_t BLOCK_BYTES = 4 << 20;

    size_t row_floats() const { return size_t(s_.heads) * size_t(s_.kv.width + rank_); }
    int block_rows() const { return std::max(MAX_TILE, int(BLOCK_BYTES / (row_floats() * sizeof(float)))); }
    void turn(const Run& run, int row, const float* x, float* out) const {
        const float* angles = run.angles.data() + size_t(row) * run.angle_stride + s_.angles_at;
        run.kernels.rope(x, out, angles, 1, dims_, s_.turned, s_.halves);
    }

    // [norm(c) | rotated rest] of one row.
    void store(const Run& run, int row) const {
        float* x = run.scratch;
        run.kernels.normalise(s_.c->in().row(row), nullptr, x, 1, rank_, s_.norm.view());
        turn(run, row, s_.c->in().row(row) + rank_, x + rank_);
        const Segment& s = run.row_segments[size_t(row)];
        const int position = s.start + (row - s.first);
        run.kernels.store_latent(s_.kv, x, run.step.pages_of(s_.group, s.slot)[position / PAGE], position % PAGE);
    }

    void block(const Run& run, int r0, int r1) const {
        const size_t q_stride = size_t(s_.heads) * size_t(s_.kv.width), o_stride = size_t(s_.heads) * size_t(rank_);
        float* base = reinterpret_cast<float*>(run.prepared);
        const RowsOut q{base - size_t(r0) * q_stride, q_stride};
        const RowsOut latent{base + size_t(r1 - r0) * q_stride - size_t(r0) * o_stride, o_stride};
        const RowsIn in = s_.q->in();
        const int value = s_.v_b[0]->rows;
        float* partials = run.scratch + attend_scratch(s_.kv.padded_width());
        float* spare = partials + tiles_scratch(s_.kv.padded_rank());

        each_head(run, r0, r1, [&](int row, int count, int h) {
            product(run, s_.k_b[size_t(h)], {in.data + h * q_dim_, in.stride}, {q.data + h * s_.kv.width, q.stride}, row, count, spare);
            for (int r = row; r < row + count; r++)
                turn(run, r, in.row(r) + h * q_dim_ + q_dim_ - dims_, q.row(r) + h * s_.kv.width + rank_);
        });
        const Tiles tiles{run, s_.group, r0, r1, {q.data, q.stride}, latent, s_.heads, 1, EVERYTHING, s_.scale};
        attend_tiles(tiles, rank_, s_.kv.padded_rank(), partials, [&](const QueryTile& t, int split, Partial& into) {
            run.kernels.attend_latent(s_.kv, t, split, into, run.scratch);
        });
        each_head(run, r0, r1, [&](int row, int count, int h) {
            product(run, s_.v_b[size_t(h)], {latent.data + h * rank_, latent.stride},
                    {s_.out->rows.data + h * value, s_.out->rows.stride}, row, count, spare);
        });
    }

    // body(first row, rows, head) for tiles of rows, head by head.
    template <class F> void each_head(const Run& run, int r0, int r1, F body) const {
        const int tile = run.kernels.tile_rows, tiles = (r1 - r0 + tile - 1) / tile;
        run.spread(long(tiles) * s_.heads, [&](long task) {
            const int row = r0 + int(task % tiles) * tile;
            body(row, std::min(tile, r1 - row), int(task / tiles));
        });
    }

    // One head's small product for a tile of rows.
    static void product(const Run& run, const Matrix* w, RowsIn x, RowsOut out, int row, int count, float* spare) {
        const bool plain = is_plain(w->format.codes);
        const Prepared input{reinterpret_cast<uint8_t*>(spare), 0, plain};
        run.kernels.prepare(x, row, count, w->cols, {}, input, nullptr);
        Product p{};
        p.input = input, p.weight = w, p.out = out;
        run.kernels.product(p, row, count, 0, w->panels);
    }

    LatentSpec s_;
    int rank_, dims_, q_dim_;
};

}  // namespace

std::unique_ptr<Op> make_latent(LatentSpec spec) { return std::make_unique<LatentAttend>(std::move(spec)); }

}  // namespace phaseline
