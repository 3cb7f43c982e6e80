"""Kimi Linear: delta attention in most layers, latent attention without rotation in the others; then a mixture of
experts behind some dense layers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phaseline.families.blocks import Decoder
from phaseline.families.delta import delta_attention, delta_state, read_delta
from phaseline.families.latent import latent_attention, read_unturned_latent
from phaseline.families.moe import mixture, read_moe
from phaseline.families.spec import ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Program
from phaseline.program.state import PagedLatent, StateSpec


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
    """The program of one step. A model may have layers of one kind alone: it then has one state group."""
    assert spec.latent is not None and spec.delta is not None
    d, recurrent = Decoder(spec, tensors), spec.delta.layers
    state: list[StateSpec] = []
    if not all(recurrent):
        state.append(PagedLatent(recurrent.count(False), spec.latent.rank + spec.latent.pe))
    if any(recurrent):
        state.append(delta_state(spec.delta))
    x = d.embed()
    for n in d.layers():
        before = recurrent[:n].count(recurrent[n])  # layers of its kind
        if recurrent[n]:
            x = mixture(d, delta_attention(d, x, before, len(state) - 1))
        else:
            x = mixture(d, latent_attention(d, x, None, before))
    return d.finish(x, state)
