// How much there is to read in a JSON text, told before it is read.
#pragma once
#include <nanobind/nanobind.h>

namespace phaseline {

void bind_json(nanobind::module_& m);

}  // namespace phaseline
