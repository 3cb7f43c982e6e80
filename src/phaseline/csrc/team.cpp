#include "team.h"

#include <immintrin.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
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

constexpr unsigned THREADS = 1023;  // the bits of start_ that say how many; the others number the jobs

double seconds_of(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace

// Where threads outnumber cores, spinning only keeps others from their work.
Team::Team(int threads)
    : spins_(threads <= int(std::thread::hardware_concurrency()) ? SPINS : 0), crew_(threads), active_(threads), claimed_(size_t(threads)) {
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
    call(size());
    for (auto& w : workers_) w.join();
}

// Starts a job. Who was left out waits on calls_ alone, which must change after start_: one that looks at calls_ first
// and at start_ then misses neither.
void Team::call(int threads) {
    const bool more = threads > active_;
    active_ = threads;
    start_.store(((start_.load(std::memory_order_relaxed) | THREADS) + 1) | unsigned(threads), std::memory_order_release);
    start_.notify_all();
    if (more || closing_) {
        calls_.fetch_add(1, std::memory_order_release);
        calls_.notify_all();
    }
}

void Team::run_on(int threads, const std::function<void(int)>& job) {
    job_ = &job;
    rearm();
    call(threads);
    job(0);
    barrier();
}

void Team::run_on_free_cores(const std::function<void(int)>& job) {
    std::atomic<double> lost{0};
    const double start = seconds_of(CLOCK_MONOTONIC);
    run_on(crew_.size(), [&](int thread) {
        const double wall = seconds_of(CLOCK_MONOTONIC), own = seconds_of(CLOCK_THREAD_CPUTIME_ID);
        job(thread);
        const double spent = seconds_of(CLOCK_THREAD_CPUTIME_ID) - own;
        lost.fetch_add(std::max(0.0, seconds_of(CLOCK_MONOTONIC) - wall - spent), std::memory_order_relaxed);
    });
    crew_.note(seconds_of(CLOCK_MONOTONIC) - start, lost.load());
}

void Team::rearm() {
    for (auto& share : claimed_) share.tasks.store(0, std::memory_order_relaxed);
}

void Team::barrier() {
    unsigned epoch = epoch_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == active_) {
        arrived_.store(0, std::memory_order_relaxed);
        rearm();
        epoch_.store(epoch + 1, std::memory_order_release);
    } else {
        await_change(epoch_, epoch, spins_);
    }
}

void Team::work(int thread) {
    unsigned seen = 0;
    for (;;) {
        const unsigned calls = calls_.load(std::memory_order_acquire);
        auto parking = std::chrono::steady_clock::now();
        if (spins_) parking += SPIN_BEFORE_PARKING;
        while (start_.load(std::memory_order_acquire) == seen) {
            for (int i = 0; i < 64 && start_.load(std::memory_order_acquire) == seen; i++) _mm_pause();
            if (std::chrono::steady_clock::now() > parking) start_.wait(seen, std::memory_order_acquire);
        }
        seen = start_.load(std::memory_order_acquire);
        if (thread >= int(seen & THREADS)) {
            calls_.wait(calls, std::memory_order_acquire);
            continue;
        }
        if (closing_) return;
        (*job_)(thread);
        barrier();
    }
}

}  // namespace phaseline
