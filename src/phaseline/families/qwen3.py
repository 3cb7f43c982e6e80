"""Qwen3: as Llama, with each head of queries and keys normed, and rotation of halves; as qwen3moe with experts."""

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
    """Sizes from the file's `qwen3.*` or `qwen3moe.*` keys."""
    s = Settings(meta, meta["general.architecture"])
    spec = decoder_spec(s, tensors)
    rope, moe = read_rope(s, spec.head_dim, spec.context, halves=True), read_moe(s, spec.ff, renormalise=True)
    s.refuse_unread()
    return replace(spec, rope=rope, moe=moe)


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed()
    for _ in d.layers():
        x = mixture(d, d.attention(x, qk_norm="head"))
    return d.finish(x)
