#include <cstring>

#include "kernels.h"

namespace portable { extern const phaseline::Kernels kernels; }
namespace avx2 { extern const phaseline::Kernels kernels; }
namespace avx512 { extern const phaseline::Kernels kernels; }

namespace phaseline {

const char* const LEVELS[3] = {"portable", "avx2", "avx512"};

const Kernels* kernels_of(const char* name) {
    for (const Kernels* k : {&portable::kernels, &avx2::kernels, &avx512::kernels})
        if (!strcmp(k->name, name)) return k;
    return nullptr;
}

bool level_runs_here(const char* name) {
    // __builtin_cpu_supports also asks whether the operating system saves the wide registers.
    if (!strcmp(name, "portable")) return true;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("f16c");
    if (!strcmp(name, "avx2")) return avx2;
    return !strcmp(name, "avx512") && avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

}  // namespace phaseline
