"""Gemma 3 (text): norms before and after, a scaled embedding, gelu, normed heads, five local layers to one global.

Local layers attend within a window and turn by a base of their own. The file's norm weights are already 1 + w.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phaseline.errors import FileFormatError
from phaseline.families.blocks import Decoder
from phaseline.families.rope import read_rope
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program
from phaseline.program.ops import Activation, RopeSpec

_PERIOD = 6  # every sixth layer is global, where the file does not say
_LAYERS_OF_27B = 62  # the one size whose scores are scaled by another width than a head's; older files do not say so


@dataclass(frozen=True)
class Gemma3Spec(ModelSpec):
    """`rope` is that of global layers."""

    window: int = 0
    local: tuple[bool, ...] = ()  # of each layer
    local_rope: RopeSpec | None = None
    scale: float = 1.0  # of the scores


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Gemma3Spec:
    """Sizes from the file's `gemma3.*` keys."""
    s = Settings(meta, "gemma3")
    spec = decoder_spec(s, tensors)
    per_head = spec.width // spec.heads if spec.layers == _LAYERS_OF_27B else spec.head_dim
    rope = read_rope(s, spec.head_dim, spec.context, halves=True, base=1e6)
    s.only("rope.dimension_count_swa", rope.dims)
    for size in ("key_length_swa", "value_length_swa"):
        s.only(f"attention.{size}", spec.head_dim)
    for cap in ("final_logit_softcapping", "attn_logit_softcapping"):
        s.only(cap, 0.0)
    full = Gemma3Spec(
        **vars(replace(spec, rope=rope)),
        window=s.integer("attention.sliding_window"),
        local=_local_layers(s, spec.layers),
        local_rope=RopeSpec(rope.dims, s.number("rope.freq_base_swa", 10000.0, low=1.0), halves=True),
        scale=s.number("attention.scale", per_head**-0.5),
    )
    s.refuse_unread()
    return full


def _local_layers(s: Settings, layers: int) -> tuple[bool, ...]:
    """From the period, whose last layer is global, or from a list of which layers are local."""
    key = "attention.sliding_window_pattern"
    pattern = s.flags(key)
    if pattern is None:
        period = s.integer(key, _PERIOD)
        return tuple((layer + 1) % period > 0 for layer in range(layers))
    if len(pattern) != layers:
        raise FileFormatError(f"{s.arch}.{key} names {len(pattern)} layers of {layers}")
    return pattern


def build(spec: Gemma3Spec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors)
    x = d.embed(scale=float(np.sqrt(np.float32(spec.width))))
    for layer in d.layers():
        local = spec.local[layer]
        x = d.attention(
            x,
            rope=spec.local_rope if local else d.rope(),
            window=spec.window if local else None,
            qk_norm="head",
            scale=spec.scale,
            post_norm="post_attention_norm",
        )
        x = d.gated(x, activation=Activation.GELU, post_norm="post_ffw_norm")
    return d.finish(x)
