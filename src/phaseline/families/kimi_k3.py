"""Kimi K3: delta attention with bounded decays, or gated latent attention without rotation; experts in a space of their
own; and a residual that mixes in the rows that earlier layers began with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.delta import hybrid_attention, hybrid_state, read_hybrid
from phaseline.families.moe import mixture
from phaseline.families.spec import ModelSpec, Settings
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program, Value
from phaseline.program.ops import Activation, residual_mix


@dataclass(frozen=True)
class KimiK3Spec(ModelSpec):
    """Every `bank_every`-th layer, the first among them, banks the row that it begins with."""

    bank_every: int = 1


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> KimiK3Spec:
    """Sizes from the file's `kimi-k3.*` keys."""
    s = Settings(meta, "kimi-k3")
    spec, space = read_hybrid(s, tensors), s.integer("expert_latent_length", 0, low=0)
    assert spec.delta is not None
    s.only("activation.situ_beta", 4.0)
    s.only("activation.situ_linear_beta", 25.0)
    delta = replace(spec.delta, lowest=s.number("kda.gate_lower_bound", low=-80.0, high=0.0))
    spec = replace(spec, delta=delta, moe=spec.moe and replace(spec.moe, latent=space))
    full = KimiK3Spec(**vars(spec), bank_every=s.integer("attn_res.block_size"))
    s.refuse_unread()
    return full


def build(spec: KimiK3Spec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step. A layer that banks its row does not add to it: its residual begins with attention."""
    d = Decoder(spec, tensors)
    x = d.embed()
    bank: tuple[Value, ...] = ()

    def mixed(part: str) -> Value:
        weight = d.b.weight(d.name(part) + ".weight", spec.width)
        return residual_mix(d.b, bank, x, weight, spec.norm_eps, "a")

    for n in d.layers():
        a, begins = mixed("attn_res_score"), n % spec.bank_every == 0
        bank = (*bank, x) if begins else bank
        x = d.close(hybrid_attention(d, a, gated=True), "attn_output", None if begins else x)
        x = mixture(d, x, source=mixed("ffn_res_score"), activation=Activation.SITU)
    x = mixed("output_res_score")
    return d.finish(x, hybrid_state(spec))
