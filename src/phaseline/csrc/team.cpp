#include "team.h"

#include <immintrin.h>
#include <sched.h>

#include <chrono>

namespace phaseline {

namespace {

// Waits until `value` is no longer `old`: pauses first, since the others are usually within a microsecond, then gives
// the core away between looks, since on a shared machine the thread waited for may need it. Sleeping instead was tried:
// with a foreign process on one core, a wake-up at every barrier cost more than the lost slices.
void await_change(const std::atomic<unsigned>& value, unsigned old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
        _mm_pause();
    }
    while (value.load(std::memory_order_acquire) == old) sched_yield();
}

constexpr int SPINS = 2000;

// Between steps Python needs some tens of microseconds; a worker that parked would pay a wake-up each step.
constexpr auto SPIN_BEFORE_PARKING = std::chrono::microseconds(200);

}  // namespace

// Where threads outnumber cores, spinning only keeps others from their work.
Team::Team(int threads) : spins_(threads <= int(std::thread::hardware_concurrency()) ? SPINS : 0) {
    try {
        for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {
        dismiss();
        throw;
    }
}

Team::~Team() { dismiss(); }

void Team::dismiss() {
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
        await_change(epoch_, epoch, spins_);
    }
}

void Team::work(int thread) {
    unsigned seen = 0;
    for (;;) {
        auto parking = std::chrono::steady_clock::now();
        if (spins_) parking += SPIN_BEFORE_PARKING;
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
