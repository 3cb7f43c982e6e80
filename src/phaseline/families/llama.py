"""Llama and its kin: RMSNorm, rotary positions over neighbours, grouped queries, SwiGLU."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.rope import read_rope
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `llama.*` keys."""
    s = Settings(meta, "llama")
    spec = decoder_spec(s, tensors)
    spec = replace(spec, rope=read_rope(s, spec.head_dim, spec.context, halves=False))
    s.only("expert_count", 0)
    s.only("expert_used_count", 0)
    s.refuse_unread()
    return spec


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed()
    for _ in d.layers():
        x = d.gated(d.attention(x))
    return d.finish(x)
