#include "team.h"

#include <immintrin.h>
#include <sched.h>

#include <chrono>

namespace phaseline {

namespace {

// Waits until done() holds: pauses first, since the others are usually within a microsecond, then gives the core
// away between looks, since on a shared machine the thread waited for may need it.
template <class F> void spin_until(F done) {
    for (int i = 0; i < 2000; i++) {
        if (done()) return;
        _mm_pause();
    }
    while (!done()) sched_yield();
}

// Between steps Python needs some tens of microseconds; a worker that parked would pay a wake-up each step.
constexpr auto SPIN_BEFORE_PARKING = std::chrono::microseconds(200);

}  // namespace

Team::Team(int threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
}

Team::~Team() {
    closing_ = true;
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    for (auto& w : workers_) w.join();
}

void Team::run(const std::function<void(int)>& job) {
    job_ = &job;
    next_task_.store(0, std::memory_order_relaxed);
    start_.fetch_add(1, std::memory_order_release);
    start_.notify_all();
    job(0);
    barrier();
}

void Team::barrier() {
    unsigned epoch = epoch_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
        arrived_.store(0, std::memory_order_relaxed);
        next_task_.store(0, std::memory_order_relaxed);
        epoch_.store(epoch + 1, std::memory_order_release);
    } else {
        spin_until([&] { return epoch_.load(std::memory_order_acquire) != epoch; });
    }
}

void Team::work(int thread) {
    unsigned seen = 0;
    for (;;) {
        auto parking = std::chrono::steady_clock::now() + SPIN_BEFORE_PARKING;
        while (start_.load(std::memory_order_acquire) == seen) {
            for (int i = 0; i < 64 && start_.load(std::memory_order_acquire) == seen; i++) _mm_pause();
            if (std::chrono::steady_clock::now() > parking) start_.wait(seen, std::memory_order_acquire);
        }
        seen++;
        if (closing_) return;
        (*job_)(thread);
        barrier();
    }
}

}  // namespace phaseline
