// How many threads of a team are worth using, where others use the same cores.
#pragma once
#include <algorithm>

namespace phaseline {

// A thread that the system halts in the middle of a step makes all others wait at the next barrier, so that a foreign
// process on one core can cost more than that core. Threads are therefore left out while the system runs others in
// their stead, and all are tried again from time to time. What a step computes does not depend on their number.
class Crew {
  public:
    explicit Crew(int threads) : all_(threads), size_(threads) {}

    int size() const { return size_; }

    // A job's seconds, and for how many thread-seconds of it the system ran others.
    void note(double wall, double lost) {
        wall_ += wall, lost_ += lost, since_ += wall;
        if (wall_ < WINDOW) return;
        const double halted = lost_ / wall_;  // threads, on average
        wall_ = lost_ = 0;
        if (halted >= HINDERED && size_ > 1) {
            if (size_ == all_) pause_ = std::min(2 * pause_, LONGEST_PAUSE);
            size_ = std::max(1, size_ - std::max(1, int(halted)));
            since_ = 0;
        } else if (size_ == all_) {
            pause_ = SHORTEST_PAUSE;
        } else if (since_ >= pause_) {
            size_ = all_;
        }
    }

  private:
    // A thread that shares its core evenly is halted half of the time. A window is long enough that a short
    // interruption is not taken for company; each try costs one, so they become rare.
    static constexpr double HINDERED = 0.25, WINDOW = 0.02, SHORTEST_PAUSE = 0.025, LONGEST_PAUSE = 0.4;

    const int all_;
    int size_;
    double wall_ = 0, lost_ = 0, since_ = 0, pause_ = SHORTEST_PAUSE;
};

}  // namespace phaseline
