"""OLMoE: as Llama, with rows of queries and keys normed whole, rotation of halves, and experts in every layer."""

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
    """Sizes from the file's `olmoe.*` keys."""
    s = Settings(meta, "olmoe")
    spec = decoder_spec(s, tensors)
    rope, moe = read_rope(s, spec.head_dim, spec.context, halves=True), read_moe(s, spec.ff, renormalise=False)
    s.refuse_unread()
    return replace(spec, rope=rope, moe=moe)


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed()
    for _ in d.layers():
        x = mixture(d, d.attention(x, qk_norm="row"))
    return d.finish(x)
