"""DeepSeek V2 and V3: latent attention, then a mixture of experts behind some dense layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.latent import latent_attention, read_turned_latent
from phaseline.families.moe import mixture, read_moe
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program
from phaseline.program.state import PagedLatent


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `deepseek2.*` keys, which V3 uses too."""
    s = Settings(meta, "deepseek2")
    latent, rope = read_turned_latent(s)
    spec = decoder_spec(s, tensors, head_dim=latent.nope + latent.pe)
    moe = read_moe(s, spec.ff, renormalise=False)
    s.integer("leading_dense_block_count", 0, low=0)  # without experts all are
    s.only("nextn_predict_layers", 0)
    s.refuse_unread()
    return replace(spec, rope=rope, latent=latent, moe=moe)


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    assert spec.latent is not None
    d = Decoder(spec, tensors)
    x = d.embed()
    for layer in d.layers():
        x = mixture(d, d.close(latent_attention(d, x, spec.rope, layer), "attn_output", x))
    return d.finish(x, (PagedLatent(spec.layers, spec.latent.rank + spec.latent.pe),))
