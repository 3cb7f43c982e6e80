#include "table.h"

#define STRING(x) #x
#define NAME_OF(x) STRING(x)

namespace PHASELINE_LEVEL {

extern const phaseline::Kernels kernels;
constinit const phaseline::Kernels kernels = {  // by no instruction: not every processor has them
    .name = NAME_OF(PHASELINE_LEVEL),
    .tile_rows = TILE_ROWS,
    .prepare = prepare,
    .product = product,
    .normalise = normalise,
    .residual_mix = residual_mix,
    .rope = rope,
    .store_kv = store_kv,
    .attend = attend,
    .store_latent = store_latent,
    .attend_latent = attend_latent,
    .merge = merge,
    .finish = finish,
    .delta_prepare = delta_prepare,
    .delta = delta,
    .gate = gate,
    .route = route,
    .combine = combine,
    .burn_float = burn_float,
    .burn_quant = burn_quant,
    .read = read,
};

}  // namespace PHASELINE_LEVEL
