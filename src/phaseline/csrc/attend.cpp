// Attention as an operation: stores the rows' keys and values, then spreads tiles of queries over the team.
#include "ops.h"
#include "tiles.h"

namespace phaseline {

namespace {

class Attend : public Op {
  public:
    explicit Attend(AttendSpec spec) : s_(spec) {}

    size_t scratch_floats() const override { return attend_scratch(s_.kv.padded_dim) + tiles_scratch(s_.kv.padded_dim); }

    void run(const Run& run) override {
        const KvLayer& kv = s_.kv;
        spread_rows(run, run.r0, run.r1, [&](int row) {
            const Segment& s = run.row_segments[size_t(row)];
            const int position = s.start + (row - s.first), page = run.step.pages_of(s_.group, s.slot)[position / PAGE];
            run.kernels.store_kv(kv, s_.k->in().row(row), s_.v->in().row(row), page, position % PAGE);
        });
        const Tiles tiles{run, s_.group, run.r0, run.r1, s_.q->in(), s_.out->rows, s_.heads / kv.kv_heads, kv.kv_heads,
                          s_.window, s_.scale};
        float* partials = run.scratch + attend_scratch(kv.padded_dim);
        attend_tiles(tiles, kv.head_dim, kv.padded_dim, partials, [&](const QueryTile& t, int split, Partial& into) {
            run.kernels.attend(kv, t, split, into, run.scratch);
        });
    }

  private:
    AttendSpec s_;
};

}  // namespace

std::unique_ptr<Op> make_attend(AttendSpec spec) { return std::make_unique<Attend>(spec); }

}  // namespace phaseline
