"""Kimi Linear: delta attention in most layers, latent attention without rotation in the others; then a mixture of
experts behind some dense layers."""

from collections.abc import Mapping
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.delta import hybrid_attention, hybrid_state, read_hybrid
from phaseline.families.moe import mixture
from phaseline.families.spec import ModelSpec, Settings
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `kimi-linear.*` keys."""
    s = Settings(meta, "kimi-linear")
    spec = read_hybrid(s, tensors)
    s.refuse_unread()
    return spec


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed()
    for _ in d.layers():
        x = mixture(d, d.close(hybrid_attention(d, x), "attn_output", x))
    return d.finish(x, hybrid_state(spec))
