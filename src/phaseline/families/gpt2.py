"""GPT-2: learned positions, LayerNorm, a bias on every product, gelu, one matrix for queries, keys and values."""

from collections.abc import Mapping
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program
from phaseline.program.ops import Activation, linear


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `gpt2.*` keys. The context is the table of positions: there is none past its end."""
    s = Settings(meta, "gpt2")
    spec = decoder_spec(s, tensors, eps="attention.layer_norm_epsilon")
    s.refuse_unread()
    return spec


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    d = Decoder(spec, tensors, layer_norm=True, biased=True)
    x = d.embed(learned_positions=True)
    for _ in d.layers():
        x = d.close(d.attend(*d.qkv(x, fused=True)), "attn_output", x)
        up = [d.matrix("ffn_up", spec.ff, spec.width)]
        bias = d.biases({"ffn_up": spec.ff})
        (h,) = linear(d.b, x, up, ("h",), norm=d.norm("ffn_norm"), biases=bias, activation=Activation.GELU)
        x = d.close(h, "ffn_down", x)
    return d.finish(x)
