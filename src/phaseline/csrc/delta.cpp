// Kimi delta attention as an operation. Rows are made ready in parallel; then each head's state, strip by strip, goes
// through the rows of its sequence in their order.
#include <algorithm>
#include <cstring>

#include "ops.h"

namespace phaseline {

namespace {

class DeltaAttend : public Op {
  public:
    explicit DeltaAttend(DeltaSpec spec)
        : s_(std::move(spec)), padded_(s_.memory.strips() * PANEL), nothing_(size_t(s_.memory.dim), 0.0f) {}

    size_t prepared_bytes() const override {
        return size_t(s_.memory.heads) * size_t(block_rows()) * DeltaRow::floats(padded_) * sizeof(float);
    }

    void run(const Run& run) override {
        for (int r0 = run.r0; r0 < run.r1; r0 += block_rows()) block(run, r0, std::min(run.r1, r0 + block_rows()));
        if (run.r0 == run.r1) run.spread(0, [](long) {});
    }

  private:
    static constexpr size_t BLOCK_BYTES = 4 << 20;  // rows that are ready stay in cache
    static constexpr int ROW_CHUNK = 8, STRIPS = 2;  // of a task

    // The part of a segment that this run computes: rows `first` and up to `end`.
    struct Piece {
        const int32_t* pages;
        int first, end;
        bool opens;  // nothing of its segment has been computed yet in this step
        // The page that holds what lies before row `from`, below zero: nothing does.
        int before(int from) const { return opens && from == first ? pages[0] : pages[1]; }
    };
    Piece piece(const Run& run, const Segment& s) const {
        const int first = std::max(run.r0, s.first);
        return {run.step.pages_of(s_.group, s.slot), first, std::min(run.r1, s.first + s.rows), first == s.first};
    }

    int block_rows() const {
        return std::max(16, int(BLOCK_BYTES / (size_t(s_.memory.heads) * DeltaRow::floats(padded_) * sizeof(float))));
    }
    // What is ready of head h, from the block's first row on.
    DeltaRows ready(const Run& run, int h) const {
        float* base = reinterpret_cast<float*>(run.prepared);
        return {base + size_t(h) * size_t(block_rows()) * DeltaRow::floats(padded_), padded_};
    }

    void block(const Run& run, int r0, int r1) const {
        const DeltaLayer& memory = s_.memory;
        each(run, r0, r1, [&](int row, int h) { prepare(run, row, h, ready(run, h).row(row - r0)); });

        const auto ends = [](const Segment& s, int row) { return s.first + s.rows <= row; };
        const Segment* segments = run.step.segments.data();
        const Segment* last = segments + run.step.segments.size();
        const Segment* first = std::lower_bound(segments, last, r0, ends);
        const long count = std::min(std::lower_bound(first, last, r1, ends) + 1, last) - first;
        const long groups = (memory.strips() + STRIPS - 1) / STRIPS;
        run.spread(count * memory.heads * groups, [&](long task) {
            const int h = int(task / groups % memory.heads), strip = int(task % groups) * STRIPS;
            const Piece p = piece(run, first[task / groups / memory.heads]);
            advance(run, p, std::max(r0, p.first), std::min(r1, p.end), ready(run, h).row(std::max(r0, p.first) - r0), h, strip);
            if (strip == 0 && p.end <= r1) keep_window(p, h);
        });

        each(run, r0, r1, [&](int row, int h) {
            float* out = s_.out->rows.row(row) + h * memory.dim;
            run.kernels.normalise(out, nullptr, out, 1, memory.dim, s_.norm.view());
            run.kernels.gate(s_.gate->in().row(row) + h * memory.dim, out, memory.dim);
        });
    }

    // body(row, head) for rows r0 .. r1-1.
    template <class F> void each(const Run& run, int r0, int r1, F body) const {
        const long chunks = (r1 - r0 + ROW_CHUNK - 1) / ROW_CHUNK;
        run.spread(chunks * s_.memory.heads, [&](long task) {
            const int first = r0 + int(task % chunks) * ROW_CHUNK, end = std::min(r1, first + ROW_CHUNK);
            for (int row = first; row < end; row++) body(row, int(task / chunks));
        });
    }

    // One head of the q (part 0), k or v of a row, which may lie before the piece.
    const float* input(const Piece& p, int row, int part, int h) const {
        const DeltaLayer& m = s_.memory;
        const Value* values[] = {s_.q, s_.k, s_.v};
        if (row >= p.first) return values[part]->in().row(row) + h * m.dim;
        const int page = p.before(p.first);
        return page < 0 ? nothing_.data() : m.recent(page, m.taps - 1 + row - p.first) + (part * m.heads + h) * m.dim;
    }

    void prepare(const Run& run, int row, int h, DeltaRow out) const {
        const DeltaLayer& m = s_.memory;
        const size_t channel = size_t(h) * size_t(m.dim);
        const DeltaHead head{m.dim, m.taps, s_.taps.data() + 3 * channel * size_t(m.taps), s_.shift.data() + channel,
                             s_.rate[size_t(h)], s_.bounded, s_.lowest, s_.unit_eps};
        const Piece p = piece(run, run.row_segments[size_t(row)]);
        DeltaInput in;
        for (int part = 0; part < 3; part++)
            for (int i = 0; i < m.taps; i++) in.recent[part][i] = input(p, row - (m.taps - 1) + i, part, h);
        in.decay = s_.decay->in().row(row) + channel;
        in.beta = s_.beta->in().row(row)[h];
        run.kernels.delta_prepare(head, in, out);
    }

    // Rows first .. end-1 through strips of head h, from the snapshot before them to the one behind.
    void advance(const Run& run, const Piece& p, int first, int end, DeltaRow rows, int h, int strip) const {
        const DeltaLayer& m = s_.memory;
        const int page = p.before(first), end_strip = std::min(strip + STRIPS, m.strips());
        float* to = m.head(p.pages[1], h);
        const size_t floats = size_t(m.dim) * PANEL;
        if (page < 0) memset(to + size_t(strip) * floats, 0, size_t(end_strip - strip) * floats * sizeof(float));
        const DeltaTile tile{{rows.data, padded_}, end - first, m.dim, strip, end_strip, page < 0 ? to : m.head(page, h), to,
                             {s_.out->rows.row(first) + h * m.dim, s_.out->rows.stride}};
        run.kernels.delta(tile);
    }

    // The latest rows of head h, for the next step; where this is read and written in one page, later rows move up.
    void keep_window(const Piece& p, int h) const {
        const DeltaLayer& m = s_.memory;
        for (int i = 0; i < m.taps - 1; i++)
            for (int part = 0; part < 3; part++)
                memcpy(m.recent(p.pages[1], i) + (part * m.heads + h) * m.dim, input(p, p.end - (m.taps - 1) + i, part, h),
                       size_t(m.dim) * sizeof(float));
    }

    DeltaSpec s_;
    int padded_;
    std::vector<float> nothing_;  // a row before the first
};

}  // namespace

std::unique_ptr<Op> make_delta(DeltaSpec spec) { return std::make_unique<DeltaAttend>(std::move(spec)); }

}  // namespace phaseline
