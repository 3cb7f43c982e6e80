// The level amx: AVX-512's kernels, but for products of full tiles of rows, whose bits are the same.
#include "level/table.h"
#include "tile_dot.h"

namespace avx512 { extern const phaseline::Kernels kernels; }

namespace amx {

namespace {

phaseline::Kernels with_tiles() {
    phaseline::Kernels k = avx512::kernels;
    k.name = "amx";
    k.product = product;
    k.burn_quant = burn_quant;
    k.open = [] { open_tiles({}); };
    k.close = close_tiles;
    return k;
}

}  // namespace

extern const phaseline::Kernels kernels;
const phaseline::Kernels kernels = with_tiles();

}  // namespace amx
