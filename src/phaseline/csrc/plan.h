// A program made native: a list of operations over an arena planned ahead, run by the whole team without a return to
// Python in between.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "kernels.h"
#include "team.h"

namespace phaseline {

// One activation of the program. Rows of TOKENS kind count the step's tokens, of WANTED kind the rows with logits.
struct Value {
    RowsOut rows;
    bool wanted;
    RowsIn in() const { return {rows.data, rows.stride}; }
};

struct Segment {
    int32_t slot, start, first, rows;
};

// What one step brings: the page table belongs to the caller and must outlive the step.
struct StepData {
    std::vector<int32_t> tokens;
    std::vector<Segment> segments;
    std::vector<int32_t> wanted;     // row numbers
    const int32_t* pages = nullptr;  // [groups][slots][max_pages]
    size_t slots = 0, max_pages = 0;
    int rows() const { return int(tokens.size()); }
    int wanted_rows() const { return int(wanted.size()); }
    // The pages of a sequence in one state group.
    const int32_t* pages_of(int group, int slot) const { return pages + (size_t(group) * slots + size_t(slot)) * max_pages; }
};

// Unfinished softmaxes of one operation's splits; the memory serves all operations in turn.
class Partials {
  public:
    // At least `count` of `floats` each. One thread makes room; the others wait for it.
    void reserve(size_t count, size_t floats) {
        if (floats_.size() < count * floats) floats_.resize(count * floats);
        partials_.resize(count);
        for (size_t i = 0; i < count; i++) partials_[i].out = floats_.data() + i * floats;
    }
    Partial& operator[](long i) { return partials_[size_t(i)]; }

  private:
    std::vector<Partial> partials_;
    std::vector<float> floats_;
};

// The memory and the team that operations share while a step runs; rows r0 .. r1-1 of the step are being computed.
struct Run {
    Team& team;
    int thread;                                // the calling one
    const Kernels& kernels;
    const StepData& step;
    const std::vector<Segment>& row_segments;  // for each row, its segment
    const std::vector<float>& angles;          // per row, for each rotation in turn, its cosines, then its sines
    size_t angle_stride;
    uint8_t* prepared;
    Partials& partials;
    float* scratch;                            // of the calling thread
    int r0, r1;
    bool experts_by_row;                       // a control: each row reads its own experts

    // body(task) for tasks 0 .. count-1 on the whole team, then a barrier.
    template <class F> void spread(long count, F&& body) const { team.spread(thread, count, std::forward<F>(body)); }
};

// What routed experts cost a step: how many different ones it touched, and how often one's weights were read.
struct ExpertReads {
    int distinct = 0;
    long reads = 0;
};

class Op {
  public:
    virtual ~Op() = default;
    // Called on every thread at once; must end with a barrier.
    virtual void run(const Run& run) = 0;
    virtual size_t prepared_row_bytes() const { return 0; }
    virtual size_t prepared_bytes() const { return 0; }  // whatever the number of rows
    virtual size_t scratch_floats() const { return 0; }
    virtual void begin() {}                                            // a step
    virtual const ExpertReads* expert_reads() const { return nullptr; }  // since then; null: has no experts
};

class Plan {
  public:
    // Steps hold at most max_rows tokens and max_wanted rows with logits.
    Plan(Team& team, const Kernels& kernels, int max_rows, int max_wanted);
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // A state group: layers that share a page list. A step must cover the positions that its rows may read; of a
    // recurrent group its list names the page to read, below zero: none, and the page to write.
    struct Group {
        int pages, window;
        bool recurrent;
        // The page of the oldest position that rows from `start` on read.
        int first_page(int start) const { return std::max(0, start - (window - 1)) / PAGE; }
    };
    void add_group(Group group) { groups_.push_back(group); }
    // A value `column` floats into each row's share of the arena; the arena grows to hold it. Returns its number.
    int add_value(int width, bool wanted, size_t column);
    // A value whose memory comes with each step: the logits.
    int add_output(int width);
    // Pair i of a head turns by position * frequencies[i]; sines and cosines are times `magnitude`. Returns where the
    // rotation's angles start in a row.
    size_t add_rotation(std::vector<double> frequencies, double magnitude);
    void add(std::unique_ptr<Op> op, int layer);
    // After the last add: allocates what the steps need.
    void seal();

    Team& team() const { return team_; }
    const Kernels& kernels() const { return kernels_; }
    Value& value(int i) { return *values_[size_t(i)]; }
    int ops() const { return int(ops_.size()); }
    const Op& op(int i) const { return *ops_[size_t(i)]; }
    int max_rows() const { return max_rows_; }
    int max_wanted() const { return max_wanted_; }
    const std::vector<Group>& groups() const { return groups_; }

    // Takes a step; the operations then run over it, all at once or one by one.
    void begin(StepData step, float* logits);
    // Runs operations a .. b-1 over all rows (by_row false), or layer by layer with one row at a time inside (true).
    // `experts_by_row` does the latter to routed experts alone. `interrupted` is asked every few milliseconds; where it answers true the rest is left out and false returned.
    // `seconds`, if given, gains each operation's time.
    bool run(int a, int b, bool by_row, bool experts_by_row, const std::function<bool()>& interrupted, double* seconds);

  private:
    struct Rotation {
        std::vector<double> frequencies;
        double magnitude;
        size_t start;
    };
    void fill_angles(int row);

    Team& team_;
    const Kernels& kernels_;
    const int max_rows_, max_wanted_;
    std::vector<std::unique_ptr<Value>> values_;  // stable addresses: operations keep pointers
    std::vector<size_t> columns_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<int> layers_;
    std::vector<Rotation> rotations_;
    std::vector<Group> groups_;
    Value* output_ = nullptr;
    std::vector<float> arena_, wanted_arena_, angles_;
    std::vector<uint8_t> prepared_;
    Partials partials_;
    std::vector<std::vector<float>> scratch_;  // one per thread
    size_t angle_stride_ = 0;
    StepData step_;
    std::vector<Segment> row_segments_;
};

}  // namespace phaseline
