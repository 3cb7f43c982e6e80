// Events of an answer out of a step's report, where text is all that they bring.
#pragma once
#include <nanobind/nanobind.h>

namespace phaseline {

void bind_events(nanobind::module_& m);

}  // namespace phaseline
