// The thread team: created once, sole owner of its threads. Everything inside a step runs on it.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "crew.h"

namespace phaseline {

class Team {
  public:
    // Throws std::system_error if the system refuses a thread.
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return int(workers_.size()) + 1; }

    // Runs job(thread) once on every thread, the caller being thread 0; returns when all are done.
    // One caller at a time.
    void run(const std::function<void(int)>& job) { run_on(size(), job); }

    // The same on the first threads only, as many as others leave their cores to.
    void run_on_free_cores(const std::function<void(int)>& job);

    // Threads that took part in the last run.
    int active() const { return active_; }

    // Inside run: all threads meet. What was written before is visible after.
    void barrier();

    // Inside run: body(task) for tasks 0 .. count-1, claimed one by one, then a barrier. Each thread begins with a share
    // of its own, tasks in a row: what they read lies in a row too, and is asked for ahead. Then it helps the others.
    template <class F> void spread(int thread, long count, F&& body) {
        for (int i = 0; i < active_; i++) {
            const int share = (thread + i) % active_;
            const long first = count * share / active_, end = count * (share + 1) / active_;
            for (long task; (task = first + claimed_[share].tasks.fetch_add(1, std::memory_order_relaxed)) < end;) body(task);
        }
        barrier();
    }

  private:
    void run_on(int threads, const std::function<void(int)>& job);
    void call(int threads);
    void work(int thread);
    void dismiss();
    void rearm();

    const int spins_;  // looks at a barrier before a thread gives its core away
    std::vector<std::thread> workers_;
    Crew crew_;
    const std::function<void(int)>* job_ = nullptr;
    int active_;
    alignas(64) std::atomic<unsigned> start_{0};  // a number for each job, and how many threads it is for
    alignas(64) std::atomic<unsigned> calls_{0};  // bumped when threads that were left out take part again
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> epoch_{0};  // bumped by the last to arrive
    struct alignas(64) Claimed {
        std::atomic<long> tasks{0};
    };
    std::vector<Claimed> claimed_;  // of each thread's share, since the last barrier
    bool closing_ = false;
};

}  // namespace phaseline
