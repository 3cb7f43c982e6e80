"""Llama and its kin, Mixtral among them: RMSNorm, rotary positions over neighbours, grouped queries, SwiGLU."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.moe import mixture, read_moe
from phaseline.families.rope import read_rope
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `llama.*` keys."""
    s = Settings(meta, "llama")
    spec = decoder_spec(s, tensors)
    rope = read_rope(s, spec.head_dim, spec.context, halves=False)
    moe = read_moe(s, spec.ff, renormalise=True)  # Mixtral
    s.refuse_unread()
    return replace(spec, rope=rope, moe=moe)


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed()
    for _ in d.layers():
        x = mixture(d, d.attention(x))
    return d.finish(x)
