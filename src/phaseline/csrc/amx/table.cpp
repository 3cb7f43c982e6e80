// The level amx: AVX-512's kernels, but for products of four rows and more, whose bits are the same. This is
// compiled for any processor: it runs wherever the module is loaded.
#define PHASELINE_LEVEL amx
#include "level/table.h"

namespace avx512 { extern const phaseline::Kernels kernels; }

namespace amx {

void open();
void close();

namespace {

phaseline::Kernels with_tiles() {
    phaseline::Kernels k = avx512::kernels;
    k.name = "amx";
    k.product = product;
    k.burn_quant = burn_quant;
    k.open = open;
    k.close = close;
    return k;
}

}  // namespace

extern const phaseline::Kernels kernels;
const phaseline::Kernels kernels = with_tiles();

}  // namespace amx
