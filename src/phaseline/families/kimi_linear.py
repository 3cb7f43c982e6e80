"""Kimi Linear: delta attention in most layers, latent attention without rotation in the others; then a mixture of
experts behind some dense layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.delta import hybrid_attention, hybrid_state, read_delta
from phaseline.families.latent import read_unturned_latent
from phaseline.families.moe import mixture, read_moe
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `kimi-linear.*` keys."""
    s = Settings(meta, "kimi-linear")
    latent, delta = read_unturned_latent(s), read_delta(s)
    spec = decoder_spec(s, tensors, head_dim=latent.nope + latent.pe)
    moe = read_moe(s, spec.ff, renormalise=True, scores="sigmoid")
    s.integer("leading_dense_block_count", 0, low=0)  # without experts all are
    s.only("nextn_predict_layers", 0)
    s.refuse_unread()
    return replace(spec, latent=latent, delta=delta, moe=moe)


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed()
    for _ in d.layers():
        x = mixture(d, d.close(hybrid_attention(d, x), "attn_output", x))
    return d.finish(x, hybrid_state(spec))
