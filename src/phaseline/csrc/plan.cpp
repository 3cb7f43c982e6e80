#include "plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace phaseline {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int ANGLE_ROWS = 16;  // rows per task of computing angles
constexpr auto ASK_EVERY = std::chrono::milliseconds(20);

struct Opened {
    const Kernels& kernels;
    explicit Opened(const Kernels& k) : kernels(k) { kernels.open(); }
    ~Opened() { kernels.close(); }
};

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

}  // namespace

Plan::Plan(Team& team, const Kernels& kernels, int max_rows, int max_wanted)
    : team_(team), kernels_(kernels), max_rows_(max_rows), max_wanted_(max_wanted) {}

int Plan::add_value(int width, bool wanted, size_t column) {
    values_.push_back(std::make_unique<Value>(Value{{nullptr, size_t(width)}, wanted}));
    columns_.push_back(column);
    return int(values_.size()) - 1;
}

int Plan::add_output(int width) {
    const int i = add_value(width, true, 0);
    output_ = values_.back().get();
    return i;
}

size_t Plan::add_rotation(std::vector<double> frequencies, double magnitude) {
    for (const Rotation& r : rotations_)
        if (r.frequencies == frequencies && r.magnitude == magnitude) return r.start;
    const size_t start = angle_stride_;
    angle_stride_ += 2 * frequencies.size();
    rotations_.push_back({std::move(frequencies), magnitude, start});
    return start;
}

void Plan::add(std::unique_ptr<Op> op, int layer) {
    ops_.push_back(std::move(op));
    layers_.push_back(layer);
}

void Plan::seal() {
    size_t tokens = 0, wanted = 0, prepared = 0, fixed = 0, scratch = 0;
    for (size_t i = 0; i < values_.size(); i++) {
        if (values_[i].get() == output_) continue;
        size_t& share = values_[i]->wanted ? wanted : tokens;
        share = std::max(share, columns_[i] + values_[i]->rows.stride);
    }
    for (const auto& op : ops_) {
        prepared = std::max(prepared, op->prepared_row_bytes());
        fixed = std::max(fixed, op->prepared_bytes());
        scratch = std::max(scratch, op->scratch_floats());
    }
    arena_.resize(tokens * size_t(max_rows_));
    wanted_arena_.resize(wanted * size_t(max_wanted_));
    for (size_t i = 0; i < values_.size(); i++) {
        if (values_[i].get() == output_) continue;
        values_[i]->rows.data = values_[i]->wanted ? wanted_arena_.data() + columns_[i] * size_t(max_wanted_)
                                                   : arena_.data() + columns_[i] * size_t(max_rows_);
    }
    prepared_.resize(std::max(fixed, prepared * size_t(std::max(max_rows_, max_wanted_)) + 64) + TILE_SLACK);
    scratch_.assign(size_t(team_.size()), std::vector<float>(scratch + TILE_SLACK / sizeof(float)));
    angles_.resize(angle_stride_ * size_t(max_rows_));
}

void Plan::begin(StepData step, float* logits) {
    step_ = std::move(step);
    output_->rows.data = logits;
    for (const auto& op : ops_) op->begin();
    row_segments_.clear();
    for (const Segment& s : step_.segments) row_segments_.insert(row_segments_.end(), size_t(s.rows), s);
    const auto fill = [&](long task) {
        const int end = std::min(step_.rows(), int(task + 1) * ANGLE_ROWS);
        for (int row = int(task) * ANGLE_ROWS; row < end; row++) fill_angles(row);
    };
    if (step_.rows() <= ANGLE_ROWS) fill(0);  // not worth waking anyone
    else team_.run([&](int thread) { team_.spread(thread, (step_.rows() + ANGLE_ROWS - 1) / ANGLE_ROWS, fill); });
}

void Plan::fill_angles(int row) {
    const Segment& s = row_segments_[size_t(row)];
    const double position = s.start + (row - s.first);
    float* at = angles_.data() + size_t(row) * angle_stride_;
    for (const Rotation& r : rotations_) {
        const size_t pairs = r.frequencies.size();
        float *cosine = at + r.start, *sine = cosine + pairs;
        for (size_t i = 0; i < pairs; i++) {
            cosine[i] = float(r.magnitude * std::cos(position * r.frequencies[i]));
            sine[i] = float(r.magnitude * std::sin(position * r.frequencies[i]));
        }
    }
}

bool Plan::run(int a, int b, bool by_row, bool experts_by_row, const std::function<bool()>& interrupted, double* seconds) {
    // Thread 0 alone asks, before it starts an operation; the barrier that ends the operation carries the answer to
    // the others, so that all of them leave at the same place.
    std::atomic<long> stop_at{-1};
    team_.run_on_free_cores([&](int thread) {
        Run run{team_, thread, kernels_, step_, row_segments_, angles_, angle_stride_, prepared_.data(),
                partials_, scratch_[size_t(thread)].data(), 0, step_.rows(), experts_by_row};
        const Opened opened(kernels_);
        auto asked = Clock::now();
        long done = 0;
        const auto one = [&](int op) {
            if (stop_at.load(std::memory_order_relaxed) == done) return false;
            const auto start = Clock::now();
            if (thread == 0 && interrupted && start - asked > ASK_EVERY) {
                asked = start;
                if (interrupted()) stop_at.store(done + 1, std::memory_order_relaxed);
            }
            ops_[size_t(op)]->run(run);
            if (thread == 0 && seconds) seconds[op] += seconds_since(start);
            done++;
            return true;
        };
        for (int i = a; i < b;) {
            int end = i + 1;
            while (end < b && layers_[size_t(end)] == layers_[size_t(i)]) end++;
            const bool rows_outside = by_row && layers_[size_t(i)] >= 0;
            for (int row = 0; row < (rows_outside ? step_.rows() : 1); row++) {
                if (rows_outside) run.r0 = row, run.r1 = row + 1;
                for (int op = i; op < end; op++)
                    if (!one(op)) return;
            }
            run.r0 = 0, run.r1 = step_.rows();
            i = end;
        }
    });
    return stop_at.load() < 0;
}

}  // namespace phaseline
