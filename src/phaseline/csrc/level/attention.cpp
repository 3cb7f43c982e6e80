// Softmax attention over pages. A query reads its context page by page, in splits of fixed length, in one order: its
// bits do not depend on the chunk it came in, on its neighbours in the tile or on who merges the splits.
#include "softmax.h"
#include "table.h"

namespace PHASELINE_LEVEL {

using namespace phaseline;

namespace {

// The same head of the next page, and of the one after it. Pages lie far apart and the hardware does not follow, so each
// line read asks for its like: two pages ahead into the second-level cache, one page ahead into the first. All at once
// they would stand in a queue before the reads.
template <class E> struct Ahead {
    const E *near, *far;
    void fetch(size_t at) const {
        __builtin_prefetch(near + at);
        __builtin_prefetch(far + at, 0, 2);
    }
};

struct Bf16 {
    using Element = uint16_t;
    static Element from(float f) { return float_to_bf16(f); }
    static size_t key(int d, int token, int) { return size_t(d / 2) * PAGE * 2 + size_t(token) * 2 + size_t(d % 2); }
    static size_t value(int d, int token, int dim) { return size_t(token / 2) * size_t(dim) * 2 + size_t(d) * 2 + size_t(token % 2); }
    static void pair(const Element* p, size_t, Float& a, Float& b) { load_bf16_pairs(p, a, b); }
    static void fetch(const Ahead<Element>& ahead, size_t at, size_t) { ahead.fetch(at); }
    static constexpr size_t LANE = 2;  // elements from one lane to the next
};

struct F32 {
    using Element = float;
    static Element from(float f) { return f; }
    static size_t key(int d, int token, int) { return size_t(d) * PAGE + size_t(token); }
    static size_t value(int d, int token, int dim) { return size_t(token) * size_t(dim) + size_t(d); }
    static void pair(const Element* p, size_t row, Float& a, Float& b) { a = load(p), b = load(p + row); }
    static void fetch(const Ahead<Element>& ahead, size_t at, size_t row) { ahead.fetch(at), ahead.fetch(at + row); }
    static constexpr size_t LANE = 1;
};

#if defined(__AVX512F__)
constexpr int WIDE = 2;  // vectors of tokens, or of dims, that a pass keeps in registers
#else
constexpr int WIDE = 1;
#endif

// scores[r][token] = q[r] . k[token] for a page; q is [d][M].
template <class T, int M>
void page_scores(const typename T::Element* keys, const Ahead<typename T::Element>& ahead, const float* q, int dim, float* scores) {
    for (int t = 0; t < PAGE; t += LANES * WIDE) {
        Float acc[M][WIDE];
        for (auto& row : acc)
            for (auto& a : row) a = zero();
        for (int d = 0; d < dim; d += 2) {
            Float even[WIDE], odd[WIDE];
            for (int w = 0; w < WIDE; w++) {
                const size_t at = T::key(d, t + w * LANES, 0);
                T::fetch(ahead, at, PAGE);
                T::pair(keys + at, PAGE, even[w], odd[w]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < M; r++) {
                const Float first = splat(q[d * M + r]), second = splat(q[(d + 1) * M + r]);
                for (int w = 0; w < WIDE; w++) acc[r][w] = fma(first, even[w], acc[r][w]);
                for (int w = 0; w < WIDE; w++) acc[r][w] = fma(second, odd[w], acc[r][w]);
            }
        }
        for (int r = 0; r < M; r++)
            for (int w = 0; w < WIDE; w++) store(scores + r * PAGE + t + w * LANES, acc[r][w]);
    }
}

// out[r] = out[r] * shrink[r] + sum over tokens of p[r][token] * v[token]; p is 0 where a query does not read.
template <class T, int M, int W>
void add_values(const typename T::Element* values, const Ahead<typename T::Element>& ahead, const float* p,
                const float* shrink, int tokens, int dim, int d, float* out) {
    Float acc[M][W];
    for (int r = 0; r < M; r++)
        for (int w = 0; w < W; w++) acc[r][w] = load(out + r * dim + d + w * LANES) * splat(shrink[r]);
    int t = 0;
    for (; t + 2 <= tokens; t += 2) {
        Float even[W], odd[W];
        for (int w = 0; w < W; w++) {
            const size_t at = T::value(d + w * LANES, t, dim);
            T::fetch(ahead, at, size_t(dim));
            T::pair(values + at, size_t(dim), even[w], odd[w]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < M; r++) {
            const Float first = splat(p[r * PAGE + t]), second = splat(p[r * PAGE + t + 1]);
            for (int w = 0; w < W; w++) acc[r][w] = fma(first, even[w], acc[r][w]);
            for (int w = 0; w < W; w++) acc[r][w] = fma(second, odd[w], acc[r][w]);
        }
    }
    if (t < tokens) {  // the other half of the last pair was never written
        for (int w = 0; w < W; w++) {
            Float even, odd;
            T::pair(values + T::value(d + w * LANES, t, dim), size_t(dim), even, odd);
            for (int r = 0; r < M; r++) acc[r][w] = fma(splat(p[r * PAGE + t]), even, acc[r][w]);
        }
    }
    for (int r = 0; r < M; r++)
        for (int w = 0; w < W; w++) store(out + r * dim + d + w * LANES, acc[r][w]);
}

template <class T, int M>
void attend_tile(const KvLayer& kv, const QueryTile& t, int split, Partial& into, float* scratch) {
    const int dim = kv.padded_dim;
    float* q = scratch;                 // [head_dim][M]
    float* scores = q + MAX_TILE * dim; // [M][PAGE]
    int oldest[M], limit[M];            // each query reads positions oldest .. limit - 1
    int first = EVERYTHING, last = 0;   // of all of them
    Float total[M];                     // of each query's weights
    for (int r = 0; r < M; r++) {
        const int i = t.first + r, row = i / t.group;
        const float* source = t.q.row(t.first_row + row) + (t.kv_head * t.group + i % t.group) * kv.head_dim;
        for (int d = 0; d < kv.head_dim; d++) q[d * M + r] = source[d] * t.scale;
        limit[r] = t.start + row + 1;
        oldest[r] = limit[r] > t.window ? limit[r] - t.window : 0;
        if (oldest[r] < first) first = oldest[r];
        if (limit[r] > last) last = limit[r];
        into.largest[r] = NOTHING;
        total[r] = zero();
        for (int d = 0; d < dim; d += LANES) store(into.out + r * dim + d, zero());
    }
    const int end = last < (split + 1) * SPLIT ? last : (split + 1) * SPLIT;
    const int begin = first > split * SPLIT ? first / PAGE * PAGE : split * SPLIT;
    for (int at = begin; at < end; at += PAGE) {
        using Element = typename T::Element;
        const auto head = [&](uint8_t* base, int pages_on) {
            const int position = at + pages_on * PAGE < end ? at + pages_on * PAGE : at;
            return reinterpret_cast<const Element*>(kv.head(base, t.pages[position / PAGE], t.kv_head));
        };
        const Element *keys = head(kv.keys, 0), *values = head(kv.values, 0);
        const Ahead<Element> more_keys{head(kv.keys, 1), head(kv.keys, 2)}, more_values{head(kv.values, 1), head(kv.values, 2)};
        const int tokens = end - at < PAGE ? end - at : PAGE;
        page_scores<T, M>(keys, more_keys, q, kv.head_dim, scores);
        float shrink[M];
        for (int r = 0; r < M; r++)
            shrink[r] = weigh_page(scores + r * PAGE, oldest[r] - at, limit[r] - at, into.largest[r], total[r]);
        int d = 0;
        for (; d + LANES * WIDE <= dim; d += LANES * WIDE) add_values<T, M, WIDE>(values, more_values, scores, shrink, tokens, dim, d, into.out);
        if (d < dim) add_values<T, M, 1>(values, more_values, scores, shrink, tokens, dim, d, into.out);
    }
    for (int r = 0; r < M; r++) into.sum[r] = sum(total[r]);
}

template <class T> void store_row(const KvLayer& kv, const float* k, const float* v, int page, int offset) {
    for (int h = 0; h < kv.kv_heads; h++, k += kv.head_dim, v += kv.head_dim) {
        auto* keys = reinterpret_cast<typename T::Element*>(kv.head(kv.keys, page, h));
        auto* values = reinterpret_cast<typename T::Element*>(kv.head(kv.values, page, h));
        for (int d = 0; d < kv.head_dim; d++) {
            keys[T::key(d, offset, 0)] = T::from(k[d]);
            values[T::value(d, offset, kv.padded_dim)] = T::from(v[d]);
        }
    }
}

using Attend = void (*)(const KvLayer&, const QueryTile&, int, Partial&, float*);
constexpr Attend ATTEND[2][TILE_ROWS] = {{EACH_COUNT(attend_tile, Bf16)}, {EACH_COUNT(attend_tile, F32)}};

}  // namespace

void attend(const KvLayer& kv, const QueryTile& t, int split, Partial& into, float* scratch) {
    ATTEND[kv.type == KvType::F32][t.count - 1](kv, t, split, into, scratch);
}

void store_kv(const KvLayer& kv, const float* k, const float* v, int page, int offset) {
    if (kv.type == KvType::BF16) store_row<Bf16>(kv, k, v, page, offset);
    else store_row<F32>(kv, k, v, page, offset);
}

void merge(Partial& a, const Partial& b, int count, int padded_dim) {
    for (int r = 0; r < count; r++) {
        const float top = a.largest[r] > b.largest[r] ? a.largest[r] : b.largest[r];
        float e[LANES];
        store(e, exp(splat(a.largest[r] - top)));
        const float keep = a.largest[r] == top ? 1.0f : e[0];
        store(e, exp(splat(b.largest[r] - top)));
        const float take = b.sum[r] == 0 ? 0.0f : b.largest[r] == top ? 1.0f : e[0];
        a.largest[r] = top;
        a.sum[r] = a.sum[r] * keep + b.sum[r] * take;
        for (int d = 0; d < padded_dim; d += LANES) {
            float* out = a.out + r * padded_dim + d;
            store(out, load(out) * splat(keep) + load(b.out + r * padded_dim + d) * splat(take));
        }
    }
}

void finish(const QueryTile& t, const Partial& a, int dim, int padded_dim) {
    for (int r = 0; r < t.count; r++) {
        const int i = t.first + r;
        float* out = t.out.row(t.first_row + i / t.group) + (t.kv_head * t.group + i % t.group) * dim;
        const Float inverse = splat(1.0f / a.sum[r]);
        for (int d = 0; d < dim; d += LANES) {
            const int lanes = dim - d < LANES ? dim - d : LANES;
            store_first(out + d, lanes, load(a.out + r * padded_dim + d) * inverse);
        }
    }
}

}  // namespace PHASELINE_LEVEL
