// The thread team: created once, sole owner of its threads. Everything inside a step runs on it.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

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
    void run(const std::function<void(int)>& job);

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
    void work(int thread);
    void dismiss();

    const int spins_;  // looks at a barrier before a thread gives its core away
    std::vector<std::thread> workers_;
    const std::function<void(int)>* job_ = nullptr;
    alignas(64) std::atomic<unsigned> start_{0};  // bumped for each job
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<unsigned> epoch_{0};  // bumped by the last to arrive
    alignas(64) std::atomic<long> next_task_{0};
    bool closing_ = false;
};

}  // namespace phaseline
