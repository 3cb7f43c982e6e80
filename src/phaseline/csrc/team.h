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

    // Inside run: all threads meet. What was written before is visible after. Also rearms claim().
    void barrier();

    // Inside run: the next task number; each is handed out once between two barriers.
    long claim() { return next_task_.fetch_add(1, std::memory_order_relaxed); }

    // Inside run: body(task) for tasks 0 .. count-1, claimed one by one, then a barrier.
    template <class F> void spread(long count, F&& body) {
        for (long task; (task = claim()) < count;) body(task);
        barrier();
    }

  private:
    void run_on(int threads, const std::function<void(int)>& job);
    void call(int threads);
    void work(int thread);
    void dismiss();

    const int spins_;  // looks at a barrier before a thread gives its core away
    std::vector<std::thread> workers_;
    Crew crew_;
    const std::function<void(int)>* job_ = nullptr;
    int active_;
    alignas(64) std::atomic<unsigned> start_{0};  // a number for each job, and how many threads it is for
    alignas(64) std::atomic<unsigned> calls_{0};  // bumped when threads that were left out take part again
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> epoch_{0};  // bumped by the last to arrive
    alignas(64) std::atomic<long> next_task_{0};
    bool closing_ = false;
};

}  // namespace phaseline
