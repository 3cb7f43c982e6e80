// How attention is cut into tasks: tiles of queries, times splits of the context that they read. What a task computes
// does not depend on the cut, only who computes it does.
#pragma once
#include <algorithm>
#include <climits>

#include "plan.h"

namespace phaseline {

// The queries of rows r0 .. r1-1, `group` to each row and key head, in tiles that never span two segments.
struct Tiles {
    const Run& run;
    int state_group;
    int r0, r1;
    RowsIn q;
    RowsOut out;
    int group, kv_heads;
    int window;  // or EVERYTHING
    float scale;

    long count() const {
        long tiles = 0;
        each_piece([&](const Segment&, int, int queries) { tiles += in_piece(queries); });
        return tiles;
    }

    // Tile `index`, for one key head.
    QueryTile find(long index, int kv_head) const {
        QueryTile t{};
        each_piece([&](const Segment& s, int row, int queries) {
            const long n = in_piece(queries);
            if (index >= 0 && index < n) {
                const int first = int(index) * run.kernels.tile_rows;
                t = {q, out, run.step.pages_of(state_group, s.slot), row, s.start + (row - s.first), group, kv_head, first,
                     std::min(run.kernels.tile_rows, queries - first), window, scale};
            }
            index -= n;
        });
        return t;
    }

    // The splits that some query of the tile reads: first .. last - 1.
    struct Splits {
        int first, last;
    };
    Splits splits(const QueryTile& t) const {
        const int low = t.start + t.first / group + 1, high = t.start + (t.first + t.count - 1) / group + 1;
        return {std::max(0, low - window) / SPLIT, (high + SPLIT - 1) / SPLIT};
    }

  private:
    long in_piece(int queries) const { return (queries + run.kernels.tile_rows - 1) / run.kernels.tile_rows; }

    // body(segment, first row of the piece, its queries per key head) for each segment's part within r0 .. r1-1.
    template <class F> void each_piece(F body) const {
        for (const Segment& s : run.step.segments) {
            const int a = std::max(r0, s.first), b = std::min(r1, s.first + s.rows);
            if (a < b) body(s, a, (b - a) * group);
        }
    }
};

constexpr int TILES_AT_ONCE = 4;  // tiles that read a split while it is in the second-level cache

// Floats of a thread's scratch that attend_tiles takes.
constexpr size_t tiles_scratch(int padded_dim) { return (TILES_AT_ONCE + 1) * size_t(MAX_TILE) * size_t(padded_dim); }

// Runs kernel(tile, split, partial) for every tile and split, then writes `dim` elements of each query. Called on every
// thread at once; ends with a barrier.
template <class Kernel>
void attend_tiles(const Tiles& tiles, int dim, int padded_dim, float* scratch, Kernel kernel) {
    constexpr long TASKS_PER_THREAD = 4;
    constexpr long WAVE = 32;  // tasks per thread of which partial results are held
    const Run& run = tiles.run;
    const size_t floats = size_t(MAX_TILE) * size_t(padded_dim);
    const long count = tiles.count(), heads = tiles.kv_heads, enough = TASKS_PER_THREAD * run.team.size();
    const auto groups = [&](long at_once) { return (count + at_once - 1) / at_once; };
    // As many tiles together as leave every thread some tasks.
    const auto together = [&](long splits) {
        long n = TILES_AT_ONCE;
        while (n > 1 && groups(n) * heads * splits < enough) n /= 2;
        return n;
    };

    // Many tiles: each task reads its whole context. Not if tasks for all then leave no tiles to share what is read.
    const bool many = count * heads >= enough, shared = together(1) == TILES_AT_ONCE;
    long splits = 1;
    for (long i = 0; i < count && !(many && shared); i++) {  // every thread looks at every tile: not where all are many
        const Tiles::Splits of = tiles.splits(tiles.find(i, 0));
        splits = std::max(splits, long(of.last - of.first));
    }
    if (many && splits == 1) {
        const long at_once = together(1);
        Partial total[TILES_AT_ONCE], next;
        for (int i = 0; i < TILES_AT_ONCE; i++) total[i].out = scratch + size_t(i) * floats;
        next.out = scratch + TILES_AT_ONCE * floats;
        run.spread(groups(at_once) * heads, [&](long task) {
            // Later tiles read more: they go first, so that no long one is left for the end.
            const long first = (groups(at_once) - 1 - task / heads) * at_once, n = std::min(at_once, count - first);
            QueryTile t[TILES_AT_ONCE];
            Tiles::Splits of[TILES_AT_ONCE], all{INT_MAX, 0};
            for (long i = 0; i < n; i++) {
                t[i] = tiles.find(first + i, int(task % heads));
                of[i] = tiles.splits(t[i]);
                all = {std::min(all.first, of[i].first), std::max(all.last, of[i].last)};
            }
            for (int split = all.first; split < all.last; split++) {
                for (long i = 0; i < n; i++) {
                    if (split < of[i].first || split >= of[i].last) continue;
                    const bool opens = split == of[i].first;
                    kernel(t[i], split, opens ? total[i] : next);
                    if (!opens) run.kernels.merge(total[i], next, t[i].count, padded_dim);
                }
            }
            for (long i = 0; i < n; i++) run.kernels.finish(t[i], total[i], dim, padded_dim);
        });
        return;
    }

    // Few tiles: the splits of a context are spread too, a wave of them at a time, and merged in the same order afterwards.
    // Held of each tile and head are a total, and what the splits of a wave add to it.
    const long at_once = together(splits), tasks = groups(at_once) * heads;
    const long wave = std::clamp(WAVE * run.team.size() / std::max(1L, tasks), 1L, splits);  // an empty step has no task
    const auto part = [&](long unit, long nth) -> Partial& {
        return run.partials[unit * (wave + 1) + (nth ? 1 + nth % wave : 0)];
    };
    run.spread(1, [&](long) { run.partials.reserve(size_t(count * heads * (wave + 1)), floats); });
    for (long from = 0; from < splits; from += wave) {
        const long n = std::min(wave, splits - from);
        run.spread(tasks * n, [&](long task) {
            const long first = task / n / heads * at_once, head = task / n % heads, nth = from + task % n;
            for (long i = first; i < std::min(count, first + at_once); i++) {
                const QueryTile t = tiles.find(i, int(head));
                const Tiles::Splits of = tiles.splits(t);
                if (of.first + nth < of.last) kernel(t, int(of.first + nth), part(i * heads + head, nth));
            }
        });
        run.spread(count * heads, [&](long unit) {
            const QueryTile t = tiles.find(unit / heads, int(unit % heads));
            const Tiles::Splits of = tiles.splits(t);
            for (long nth = std::max(1L, from); nth < std::min(from + n, long(of.last - of.first)); nth++)
                run.kernels.merge(part(unit, 0), part(unit, nth), t.count, padded_dim);
            if (from + n == splits) run.kernels.finish(t, part(unit, 0), dim, padded_dim);
        });
    }
}

}  // namespace phaseline
