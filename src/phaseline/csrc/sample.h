// From a row of logits to a token, or to log-probabilities. Everything is decided in one order of the tokens (larger
// logit first, then lower id) and in whole-number masses, whose sums are exact in any order: equal logits, parameters
// and (seed, index, position) give the same token on every machine, whoever else is in the batch.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace phaseline {

// The logits have no softmax: a NaN, a +inf, or all -inf.
struct LogitsError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A token's place in the order: its logit, then its id.
struct Rank {
    float value;
    int32_t id;
};

using Scores = std::vector<std::pair<int32_t, double>>;  // ids with a number each

// One row of logits, summarised by groups, so that most passes touch few of them.
class Row {
  public:
    explicit Row(int vocab);

    // Takes a row, which must outlive its use here; `number` names it in errors. Throws LogitsError.
    void read(const float* logits, size_t number);
    int argmax() const;

    // Sets the temperature at which masses are taken.
    void heat(double temperature);
    // The k-th token of the order; the last of all where fewer can be chosen.
    Rank kth(size_t k) const;
    // A place after all tokens whose logit is at most `distance` below the first one's.
    Rank within(double distance) const;
    // The last token of the shortest prefix with `share` of the mass up to `cut`.
    Rank nucleus(Rank cut, double share) const;
    // Drops every token after `cut`; returns the mass of the rest.
    uint64_t keep(Rank cut);
    // The token at `mass` (less than keep returned) along the kept ones in order of their ids.
    int pick(uint64_t mass) const;

    // Natural log of the softmax at temperature 1: the token's, and the `top` first tokens' but those at -inf.
    std::pair<double, Scores> logprobs(int token, size_t top);

  private:
    std::vector<Rank> contenders(size_t k) const;
    size_t bin(float logit) const;
    uint64_t masses(size_t g, Rank cut, uint64_t* out) const;

    const size_t vocab_;
    const float* logits_ = nullptr;
    std::vector<float> tops_;     // each group's largest logit
    std::vector<uint64_t> sums_;  // each group's kept mass
    float max_ = 0, scale_ = 1;
    Rank cut_{};
};

struct SampleParams {
    double temperature = 0;  // 0: greedy
    int64_t top_k = 0;       // 0: off
    double top_p = 1, min_p = 0;
    double repetition = 1, presence = 0, frequency = 0;
    Scores bias;
    std::vector<int32_t> stops;  // not to be chosen before min_tokens were
    int64_t min_tokens = 0;
};

// What one completion's next choice depends on. Counts of tokens are kept only where a penalty reads them.
class SamplerState {
  public:
    // Ids outside the vocabulary are refused: std::out_of_range.
    SamplerState(int vocab, SampleParams params, uint64_t seed, uint32_t index, const std::vector<int32_t>& prompt);

    int vocab() const { return vocab_; }
    // The token at `position` of the sequence, of those whose bit is set in `allowed` (null: of all). Changes nothing
    // but `row` and `scratch`.
    int choose(const float* logits, size_t number, uint64_t position, const uint32_t* allowed, Row& row,
               std::vector<float>& scratch) const;
    // Counts a generated token.
    void observe(int token);
    // The same, drawing from another stream.
    SamplerState fork(uint32_t index) const;

  private:
    struct Seen {
        int32_t id;
        int64_t generated;  // 0: in the prompt only
    };
    void check(int token) const;
    bool changes_logits() const;
    void change(float* logits) const;

    int vocab_;
    SampleParams params_;
    uint64_t seed_;
    uint32_t index_;
    bool counts_;
    int64_t generated_ = 0;
    std::vector<Seen> seen_;  // by id
};

void bind_sample(nanobind::module_& m);

}  // namespace phaseline
