#include "sample.h"

#include <emmintrin.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace phaseline {

namespace {

constexpr size_t GROUP = 64;
constexpr int LANES = 4;
constexpr int MASS_BITS = 40;  // the first token's mass is 2^40: a vocabulary of 2^23 cannot overflow the sum
constexpr int REACH = MASS_BITS + 2;  // this many halvings below the first token, masses are 0 for certain
constexpr float INF = std::numeric_limits<float>::infinity();
constexpr Rank LAST{-FLT_MAX, INT_MAX};  // keeps all but -inf

bool before(const Rank& a, const Rank& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// The group's logits: in place, or the row's end filled up with -inf.
inline const float* group(const float* row, size_t vocab, size_t g, float* padded) {
    const float* start = row + g * GROUP;
    const size_t count = vocab - g * GROUP;
    if (count >= GROUP) return start;
    std::fill(std::copy(start, start + count, padded), padded + GROUP, -INF);
    return padded;
}

// Round x to a float, but a finite logit never to an infinite one.
float bounded(float logit, double x) {
    return std::isfinite(logit) ? float(std::clamp(x, double(-FLT_MAX), double(FLT_MAX))) : logit;
}

// Makes every logit -inf whose bit is clear; a NaN stays one.
void exclude(const uint32_t* allowed, float* logits, size_t vocab) {
    const __m128 inf = _mm_set1_ps(INF);
    const __m128i lane = _mm_setr_epi32(1, 2, 4, 8);
    size_t i = 0;
    for (; i + LANES <= vocab; i += LANES) {
        const __m128i bits = _mm_and_si128(_mm_set1_epi32(int(allowed[i / 32] >> i % 32)), lane);
        const __m128 kept = _mm_castsi128_ps(_mm_cmpeq_epi32(bits, lane));
        _mm_storeu_ps(logits + i, _mm_sub_ps(_mm_loadu_ps(logits + i), _mm_andnot_ps(kept, inf)));
    }
    for (; i < vocab; i++)
        if (!(allowed[i / 32] >> i % 32 & 1)) logits[i] -= INF;
}

// 2^f for f in [-1/2, 1/2]: the Taylor series of exp(f ln 2), 5e-9 off at most before rounding; exactly 1 at 0.
__m128 exp2_fraction(__m128 f) {
    constexpr double L = std::numbers::ln2;
    static constexpr float SERIES[] = {float(L * L * L * L * L * L * L / 5040), float(L * L * L * L * L * L / 720),
                                       float(L * L * L * L * L / 120), float(L * L * L * L / 24), float(L * L * L / 6),
                                       float(L * L / 2), float(L), 1.0f};
    __m128 sum = _mm_set1_ps(SERIES[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) sum = _mm_add_ps(_mm_mul_ps(sum, f), _mm_set1_ps(SERIES[i]));
    return sum;
}

// 64 random bits: Philox4x32-10 (Salmon et al. 2011), the first two words.
uint64_t philox(uint64_t key, uint64_t position, uint32_t index) {
    uint32_t c[4] = {uint32_t(position), uint32_t(position >> 32), index, 0};
    uint32_t k[2] = {uint32_t(key), uint32_t(key >> 32)};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = uint64_t(0xD2511F53) * c[0], b = uint64_t(0xCD9E8D57) * c[2];
        const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b),
                                  uint32_t(a >> 32) ^ c[3] ^ k[1], uint32_t(a)};
        std::copy(next, next + 4, c);
        k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
    return uint64_t(c[1]) << 32 | c[0];
}

}  // namespace

Row::Row(int vocab) : vocab_(size_t(vocab)), tops_((vocab_ + GROUP - 1) / GROUP), sums_(tops_.size()) {}

void Row::read(const float* logits, size_t number) {
    logits_ = logits;
    int nan = 0;
    for (size_t g = 0; g < tops_.size(); g++) {
        float padded[GROUP];
        const float* z = group(logits, vocab_, g, padded);
        __m128 top[2] = {_mm_set1_ps(-INF), _mm_set1_ps(-INF)}, unordered = _mm_setzero_ps();
        for (size_t i = 0; i < GROUP; i += 2 * LANES) {
            const __m128 a = _mm_loadu_ps(z + i), b = _mm_loadu_ps(z + i + LANES);
            top[0] = _mm_max_ps(a, top[0]), top[1] = _mm_max_ps(b, top[1]);
            unordered = _mm_or_ps(unordered, _mm_cmpunord_ps(a, b));
        }
        nan |= _mm_movemask_ps(unordered);
        const __m128 pair = _mm_max_ps(top[0], top[1]), one = _mm_max_ps(pair, _mm_movehl_ps(pair, pair));
        tops_[g] = _mm_cvtss_f32(_mm_max_ss(one, _mm_shuffle_ps(one, one, 1)));
    }
    max_ = *std::max_element(tops_.begin(), tops_.end());
    if (!nan && std::isfinite(max_)) return;
    const std::string where = "logits of row " + std::to_string(number) + ": ";
    if (nan) {
        const float* first = std::find_if(logits, logits + vocab_, [](float z) { return std::isnan(z); });
        throw LogitsError(where + "NaN at token " + std::to_string(first - logits));
    }
    if (max_ == INF) throw LogitsError(where + "+inf at token " + std::to_string(argmax()));
    throw LogitsError(where + "all are -inf, no token can be chosen");
}

int Row::argmax() const {
    const size_t g = size_t(std::find(tops_.begin(), tops_.end(), max_) - tops_.begin());
    return int(std::find(logits_ + g * GROUP, logits_ + vocab_, max_) - logits_);
}

void Row::heat(double temperature) {
    scale_ = float(std::min(std::numbers::log2e / temperature, double(FLT_MAX)));
}

// Mass of each token in a group, 2^(40 + (logit - max) * scale) rounded, 0 after the cut; returns their sum.
uint64_t Row::masses(size_t g, Rank last, uint64_t* out) const {
    const __m128 max = _mm_set1_ps(max_), scale = _mm_set1_ps(scale_), lowest = _mm_set1_ps(-100);
    const __m128 cut = _mm_set1_ps(last.value);
    const __m128i cut_id = _mm_set1_epi32(last.id);
    const __m128d whole = _mm_set1_pd(0x1p52);  // added to a smaller number, leaves it rounded in the low bits
    float padded[GROUP];
    const float* z = group(logits_, vocab_, g, padded);
    __m128i id = _mm_add_epi32(_mm_set1_epi32(int(g * GROUP)), _mm_setr_epi32(0, 1, 2, 3));
    __m128i sum = _mm_setzero_si128();
    for (size_t i = 0; i < GROUP; i += LANES) {
        const __m128 v = _mm_loadu_ps(z + i);
        const __m128 tie = _mm_andnot_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(id, cut_id)), _mm_cmpeq_ps(v, cut));
        const __m128 kept = _mm_or_ps(_mm_cmpgt_ps(v, cut), tie);
        const __m128 power = _mm_max_ps(_mm_mul_ps(_mm_sub_ps(v, max), scale), lowest);
        const __m128i n = _mm_cvtps_epi32(power);
        const __m128i fraction = _mm_castps_si128(exp2_fraction(_mm_sub_ps(power, _mm_cvtepi32_ps(n))));
        const __m128i exponent = _mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(MASS_BITS)), 23);
        const __m128 mass = _mm_and_ps(kept, _mm_castsi128_ps(_mm_add_epi32(fraction, exponent)));
        const __m128d low = _mm_add_pd(_mm_cvtps_pd(mass), whole);
        const __m128d high = _mm_add_pd(_mm_cvtps_pd(_mm_movehl_ps(mass, mass)), whole);
        const __m128i a = _mm_xor_si128(_mm_castpd_si128(low), _mm_castpd_si128(whole));
        const __m128i b = _mm_xor_si128(_mm_castpd_si128(high), _mm_castpd_si128(whole));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), a);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i + 2), b);
        sum = _mm_add_epi64(sum, _mm_add_epi64(a, b));
        id = _mm_add_epi32(id, _mm_set1_epi32(LANES));
    }
    uint64_t half[2];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(half), sum);
    return half[0] + half[1];
}

uint64_t Row::keep(Rank cut) {
    cut_ = cut;
    uint64_t total = 0, each[GROUP];
    for (size_t g = 0; g < tops_.size(); g++) total += sums_[g] = tops_[g] >= cut.value ? masses(g, cut, each) : 0;
    return total;
}

int Row::pick(uint64_t mass) const {
    size_t g = 0;
    for (; mass >= sums_[g]; g++) mass -= sums_[g];
    uint64_t each[GROUP];
    masses(g, cut_, each);
    size_t i = 0;
    for (; mass >= each[i]; i++) mass -= each[i];
    return int(g * GROUP + i);
}

// The first k tokens of the order and some others: k groups have a top no less than the k-th largest top.
std::vector<Rank> Row::contenders(size_t k) const {
    float floor = LAST.value;
    if (k <= tops_.size()) {
        std::vector<float> tops = tops_;
        std::nth_element(tops.begin(), tops.begin() + long(k) - 1, tops.end(), std::greater<>());
        floor = std::max(floor, tops[k - 1]);
    }
    std::vector<Rank> found;
    for (size_t g = 0; g < tops_.size(); g++) {
        if (tops_[g] < floor) continue;
        for (size_t i = g * GROUP; i < std::min((g + 1) * GROUP, vocab_); i++)
            if (logits_[i] >= floor) found.push_back({logits_[i], int32_t(i)});
    }
    return found;
}

Rank Row::kth(size_t k) const {
    std::vector<Rank> some = contenders(k);
    if (some.size() < k) return LAST;
    std::nth_element(some.begin(), some.begin() + long(k) - 1, some.end(), before);
    return some[k - 1];
}

Rank Row::within(double distance) const { return {float(max_ - distance), INT_MAX}; }

// How far below the first token, in sixteenths of a halving of the mass: never less for a smaller logit.
size_t Row::bin(float logit) const { return size_t(std::min((max_ - logit) * scale_, float(REACH)) * 16); }

Rank Row::nucleus(Rank cut, double share) const {
    uint64_t bins[REACH * 16 + 1] = {}, each[GROUP];
    for (size_t g = 0; g < tops_.size(); g++) {
        if (tops_[g] < cut.value) continue;
        masses(g, cut, each);
        for (size_t i = g * GROUP; i < std::min((g + 1) * GROUP, vocab_); i++) bins[bin(logits_[i])] += each[i % GROUP];
    }
    const uint64_t total = std::accumulate(std::begin(bins), std::end(bins), uint64_t(0));
    uint64_t target = std::clamp(uint64_t(std::ceil(share * double(total))), uint64_t(1), total);
    size_t b = 0;
    for (; target > bins[b]; b++) target -= bins[b];

    struct Candidate : Rank {
        uint64_t mass;
    };
    std::vector<Candidate> some;  // the bin's tokens: the one sought is where their mass reaches target
    for (size_t g = 0; g < tops_.size(); g++) {
        if (bin(tops_[g]) > b) continue;
        masses(g, cut, each);
        for (size_t i = g * GROUP; i < std::min((g + 1) * GROUP, vocab_); i++)
            if (bin(logits_[i]) == b) some.push_back({{logits_[i], int32_t(i)}, each[i % GROUP]});
    }
    auto first = some.begin(), last = some.end();
    while (last - first > 1) {  // it is among first .. last-1, and target counts from first
        const auto middle = first + (last - first) / 2;
        std::nth_element(first, middle, last, before);
        uint64_t mass = 0;
        for (auto c = first; c != middle; c++) mass += c->mass;
        if (mass >= target)
            last = middle;
        else
            target -= mass, first = middle;
    }
    return *first;
}

std::pair<double, Scores> Row::logprobs(int token, size_t top) {
    heat(1);
    const double log_sum = std::log(double(keep(within(REACH * std::numbers::ln2)))) - MASS_BITS * std::numbers::ln2;
    const auto logprob = [&](float z) { return double(z) - double(max_) - log_sum; };
    Scores best;
    if (top) {
        std::vector<Rank> some = contenders(top);
        const auto end = some.begin() + long(std::min(top, some.size()));
        std::partial_sort(some.begin(), end, some.end(), before);
        for (auto r = some.begin(); r != end; r++) best.emplace_back(r->id, logprob(r->value));
    }
    return {logprob(logits_[token]), std::move(best)};
}

SamplerState::SamplerState(int vocab, SampleParams params, uint64_t seed, uint32_t index,
                           const std::vector<int32_t>& prompt)
    : vocab_(vocab), params_(std::move(params)), seed_(seed), index_(index),
      counts_(params_.repetition != 1 || params_.presence != 0 || params_.frequency != 0) {
    for (const auto& [id, bias] : params_.bias) check(id);
    for (int32_t id : params_.stops) check(id);
    for (int32_t id : prompt) check(id);
    if (params_.repetition == 1) return;  // the other penalties do not read the prompt
    std::vector<int32_t> ids = prompt;
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (int32_t id : ids) seen_.push_back({id, 0});
}

void SamplerState::check(int token) const {
    if (token >= 0 && token < vocab_) return;
    throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary of " +
                            std::to_string(vocab_));
}

SamplerState SamplerState::fork(uint32_t index) const {
    SamplerState copy = *this;
    copy.index_ = index;
    return copy;
}

void SamplerState::observe(int token) {
    check(token);
    generated_++;
    if (!counts_) return;
    auto at = std::lower_bound(seen_.begin(), seen_.end(), token, [](const Seen& s, int id) { return s.id < id; });
    if (at == seen_.end() || at->id != token) at = seen_.insert(at, {token, 0});
    at->generated++;
}

bool SamplerState::changes_logits() const {
    return !params_.bias.empty() || !seen_.empty() || (generated_ < params_.min_tokens && !params_.stops.empty());
}

void SamplerState::change(float* logits) const {
    for (const auto& [id, bias] : params_.bias) logits[id] = bounded(logits[id], logits[id] + bias);
    for (const Seen& s : seen_) {
        double z = logits[s.id];
        z = z > 0 ? z / params_.repetition : z * params_.repetition;
        if (s.generated) z -= params_.presence + params_.frequency * double(s.generated);
        logits[s.id] = bounded(logits[s.id], z);
    }
    if (generated_ < params_.min_tokens)
        for (int32_t id : params_.stops) logits[id] -= INF;  // so that a NaN stays one
}

int SamplerState::choose(const float* logits, size_t number, uint64_t position, const uint32_t* allowed, Row& row,
                         std::vector<float>& scratch) const {
    if (allowed || changes_logits()) {
        scratch.assign(logits, logits + vocab_);
        if (allowed) exclude(allowed, scratch.data(), size_t(vocab_));
        change(scratch.data());
        logits = scratch.data();
    }
    row.read(logits, number);
    if (params_.temperature == 0) return row.argmax();
    row.heat(params_.temperature);
    double reach = REACH * std::numbers::ln2;
    if (params_.min_p > 0) reach = std::min(reach, -std::log(params_.min_p));
    Rank cut = row.within(reach * params_.temperature);
    if (params_.top_k > 0 && params_.top_k < vocab_) cut = std::min(cut, row.kth(size_t(params_.top_k)), before);
    if (params_.top_p < 1) cut = row.nucleus(cut, params_.top_p);
    const uint64_t total = row.keep(cut);
    const auto product = static_cast<unsigned __int128>(philox(seed_, position, index_)) * total;
    return row.pick(uint64_t(product >> 64));
}

namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// All tokens are chosen before the first is counted: an error leaves every sampler as it was.
std::vector<int> sample(const std::vector<SamplerState*>& samplers, Logits logits, const std::vector<size_t>& rows,
                        const std::vector<uint64_t>& positions, const std::vector<std::optional<Mask>>& masks) {
    const int vocab = int(logits.shape(1));
    if (rows.size() != samplers.size() || positions.size() != samplers.size() || masks.size() != samplers.size())
        throw nb::value_error("each sampler needs one row, one position and one mask or None");
    for (const SamplerState* s : samplers)
        if (s->vocab() != vocab) throw nb::value_error("the logits' width is not the sampler's vocabulary");
    for (size_t r : rows)
        if (r >= logits.shape(0)) throw nb::index_error("no such row of logits");
    for (const auto& mask : masks)
        if (mask && mask->shape(0) * 32 < size_t(vocab)) throw nb::value_error("a mask has fewer bits than logits");
    nb::gil_scoped_release unlocked;
    Row row(vocab);
    std::vector<float> scratch;
    std::vector<int> tokens;
    for (size_t i = 0; i < samplers.size(); i++) {
        const float* z = logits.data() + rows[i] * size_t(vocab);
        const uint32_t* allowed = masks[i] ? masks[i]->data() : nullptr;
        tokens.push_back(samplers[i]->choose(z, rows[i], positions[i], allowed, row, scratch));
    }
    for (size_t i = 0; i < samplers.size(); i++) samplers[i]->observe(tokens[i]);
    return tokens;
}

std::vector<std::pair<double, Scores>> logprobs(Logits logits, const std::vector<int>& targets, size_t top) {
    const int vocab = int(logits.shape(1));
    if (targets.size() != logits.shape(0)) throw nb::value_error("each row of logits needs one target");
    for (int t : targets)
        if (t < 0 || t >= vocab) throw nb::index_error("a target is outside the vocabulary");
    nb::gil_scoped_release unlocked;
    Row row(vocab);
    std::vector<std::pair<double, Scores>> results;
    for (size_t i = 0; i < targets.size(); i++) {
        row.read(logits.data() + i * size_t(vocab), i);
        results.push_back(row.logprobs(targets[i], top));
    }
    return results;
}

}  // namespace

void bind_sample(nb::module_& m) {
    nb::exception<LogitsError>(m, "LogitsError");
    nb::class_<SamplerState>(m, "SamplerState", "What one completion's next choice depends on.")
        .def("__init__", [](SamplerState* self, int vocab, uint64_t seed, uint32_t index,
                            const std::vector<int32_t>& prompt, double temperature, int64_t top_k, double top_p,
                            double min_p, double repetition, double presence, double frequency, Scores bias,
                            std::vector<int32_t> stops, int64_t min_tokens) {
            SampleParams params{temperature, top_k, top_p, min_p, repetition, presence, frequency,
                                std::move(bias), std::move(stops), min_tokens};
            new (self) SamplerState(vocab, std::move(params), seed, index, prompt);
        }, nb::kw_only(), "vocab"_a, "seed"_a, "index"_a, "prompt"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "repetition"_a, "presence"_a, "frequency"_a, "bias"_a, "stops"_a, "min_tokens"_a)
        .def("observe", &SamplerState::observe, "token"_a)
        .def("fork", &SamplerState::fork, "index"_a);
    m.def("sample", &sample, "samplers"_a, "logits"_a, "rows"_a, "positions"_a, "masks"_a,
          "One token for each sampler, from the logits row and for the position named beside it, of those whose bit is "
          "set in its mask.");
    m.def("logprobs", &logprobs, "logits"_a, "targets"_a, "top"_a,
          "For each row: the target's log-probability, and the `top` likeliest tokens with theirs.");
}

}  // namespace phaseline
