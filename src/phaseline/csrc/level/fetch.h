// Reading long stretches of memory as fast as a core can.
#pragma once
#include <cstddef>
#include <cstdint>

#include "table.h"

namespace PHASELINE_LEVEL {

// The hardware stops at every small page, so what comes from memory is asked for so many bytes ahead: first into the
// second-level cache, which waits for more lines at once than the first one can, then into the first.
constexpr size_t NEAR = 3072, FAR = 16384;

inline void fetch_ahead(const uint8_t* data, size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch(data + NEAR + line);
        __builtin_prefetch(data + FAR + line, 0, 2);
    }
}

}  // namespace PHASELINE_LEVEL
