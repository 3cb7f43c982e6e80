#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace portable { extern const phaseline::Kernels kernels; }
namespace avx2 { extern const phaseline::Kernels kernels; }
namespace avx512 { extern const phaseline::Kernels kernels; }
namespace amx { extern const phaseline::Kernels kernels; }

namespace phaseline {

namespace {

// Whether the processor has tiles of bytes, and the system saves them and lets this process use them: it must be asked.
bool ask_for_tiles() {
    constexpr unsigned TILES = 1u << 24, BYTES = 1u << 25, SAVED = 3u << 17;  // cpuid 7: amx-tile, amx-int8; XCR0: 17, 18
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILES) == 0 || (d & BYTES) == 0) return false;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return (low & SAVED) == SAVED && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool tiles_are_trusted = false;

}  // namespace

void trust_tiles() { tiles_are_trusted = true; }

const char* const LEVELS[4] = {"portable", "avx2", "avx512", "amx"};

const Kernels& kernels_here(const char* name) {
    for (const Kernels* k : {&portable::kernels, &avx2::kernels, &avx512::kernels, &amx::kernels})
        if (!strcmp(name, k->name)) {
            if (!level_runs_here(k->name)) throw std::invalid_argument(std::string("this machine cannot run level ") + name);
            return *k;
        }
    throw std::invalid_argument(std::string("unknown instruction-set level ") + name);
}

bool level_runs_here(const char* name) {
    // __builtin_cpu_supports also asks whether the operating system saves the wide registers.
    if (!strcmp(name, "portable")) return true;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("f16c");
    if (!strcmp(name, "avx2")) return avx2;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    if (!strcmp(name, "avx512")) return avx512;
    static const bool tiles = ask_for_tiles();
    return !strcmp(name, "amx") && avx512 && (tiles || tiles_are_trusted);
}

}  // namespace phaseline
