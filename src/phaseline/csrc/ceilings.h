// Measured ceilings of this machine, taken with the very team that runs the steps.
#pragma once
#include <nanobind/nanobind.h>

namespace phaseline {

void bind_ceilings(nanobind::module_& m);

}  // namespace phaseline
