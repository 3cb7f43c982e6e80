#include "ceilings.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace phaseline {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Work per second over `seconds`: every thread repeats `round` (which returns the work it did) until time is up.
template <class F> double rate(Team& team, double seconds, F round) {
    std::vector<double> done(size_t(team.size()), 0.0);
    const auto start = Clock::now();
    team.run([&](int thread) {
        while (seconds_since(start) < seconds) done[size_t(thread)] += round(thread);
    });
    const double elapsed = seconds_since(start);
    double total = 0;
    for (double d : done) total += d;
    return total / elapsed;
}

struct Free {
    void operator()(uint8_t* p) const { free(p); }
};

}  // namespace

void bind_ceilings(nb::module_& m) {
    m.def("float_rate", [](Team& team, const std::string& level, double seconds) {
        const Kernels& k = kernels_here(level.c_str());
        nb::gil_scoped_release unlocked;
        return rate(team, seconds, [&](int) { return k.burn_float(20000); });
    }, "team"_a, "level"_a, "seconds"_a, "FLOP/s of float32 multiply-adds from registers.");
    m.def("quant_rate", [](Team& team, const std::string& level, double seconds) {
        const Kernels& k = kernels_here(level.c_str());
        nb::gil_scoped_release unlocked;
        return rate(team, seconds, [&](int) { return k.burn_quant(20000); });
    }, "team"_a, "level"_a, "seconds"_a,
       "OP/s of byte codes times fifteen-bit activations, a multiply-add being two, whatever instructions it takes.");
    m.def("read_rate", [](Team& team, const std::string& level, size_t bytes, double seconds) {
        const Kernels& k = kernels_here(level.c_str());
        nb::gil_scoped_release unlocked;
        constexpr size_t ALIGN = size_t(2) << 20;
        const size_t share = (bytes / size_t(team.size()) + 255) / 256 * 256;  // each thread keeps to its own part
        const size_t whole = (share * size_t(team.size()) + ALIGN - 1) / ALIGN * ALIGN;
        std::unique_ptr<uint8_t[], Free> data(static_cast<uint8_t*>(aligned_alloc(ALIGN, whole)));
        if (!data) throw std::bad_alloc();
        team.run([&](int t) { std::fill_n(data.get() + size_t(t) * share, share, uint8_t(1)); });
        return rate(team, seconds, [&](int t) { return k.read(data.get() + size_t(t) * share, share); });
    }, "team"_a, "level"_a, "bytes"_a, "seconds"_a, "B/s of reading a buffer of that size again and again.");
}

}  // namespace phaseline
