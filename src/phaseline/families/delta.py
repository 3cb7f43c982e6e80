"""Kimi delta attention, the block it makes, and what files say of models that have it beside latent attention."""

from collections.abc import Mapping
from dataclasses import replace

from phaseline.families.blocks import Decoder
from phaseline.families.latent import latent_attention, read_unturned_latent
from phaseline.families.moe import read_moe
from phaseline.families.spec import DeltaSpec, ModelSpec, Settings, decoder_spec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Decay, DeltaAttend, RMSNorm, linear
from phaseline.program.state import PagedLatent, Recurrent, StateSpec

_EVERY = 512  # positions from one kept snapshot to the next: a whole chunk, as chunks are by default


def read_delta(s: Settings) -> DeltaSpec:
    """Which layers carry a state, and its sizes: those are said to have no key heads, others share one."""
    layers, heads = s.integer("block_count"), s.integer("attention.head_count")
    keys = s.integers("attention.head_count_kv", layers, high=1)
    taps = s.integer("ssm.conv_kernel", low=2, high=64)
    return DeltaSpec(heads, s.integer("kda.head_dim", high=1024), taps, tuple(not n for n in keys))


def read_hybrid(s: Settings, tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """What models of delta attention, latent attention without rotation and experts behind dense layers state alike."""
    latent, delta = read_unturned_latent(s), read_delta(s)
    spec = decoder_spec(s, tensors, head_dim=latent.nope + latent.pe)
    moe = read_moe(s, spec.ff, renormalise=True, scores="sigmoid")
    s.integer("leading_dense_block_count", 0, low=0)  # without experts all are
    s.only("nextn_predict_layers", 0)
    return replace(spec, latent=latent, delta=delta, moe=moe)


def hybrid_state(spec: ModelSpec) -> tuple[StateSpec, ...]:
    """Latents, then what delta attention carries on; a model with layers of one kind alone has one group."""
    delta, latent = spec.delta, spec.latent
    assert delta is not None and latent is not None
    groups: list[StateSpec] = []
    if not all(delta.layers):
        groups.append(PagedLatent(delta.layers.count(False), latent.rank + latent.pe))
    if any(delta.layers):
        width = delta.heads * delta.dim
        parts = (("state", (delta.heads, delta.dim, delta.dim)), ("window", (delta.taps - 1, 3 * width)))
        groups.append(Recurrent(sum(delta.layers), parts, _EVERY))
    return tuple(groups)


def hybrid_attention(d: Decoder, x: Value, *, gated: bool = False) -> Value:
    """The attention that the present layer has, its output still to be projected. gated: that of latents is."""
    assert d.spec.delta is not None
    layers = d.spec.delta.layers
    recurrent = layers[d.b.layer]
    before = layers[: d.b.layer].count(recurrent)  # layers of its kind
    if recurrent:
        return delta_attention(d, x, before, 0 if all(layers) else 1)
    return latent_attention(d, x, None, before, gated=gated)


def delta_attention(d: Decoder, x: Value, layer: int, group: int) -> Value:
    """The delta attention of one layer to the normed rows, whose state is layer `layer` of state group `group`; its
    output still to be projected. The gate of what it reads is one matrix, or the product of two."""
    delta, b = d.spec.delta, d.b
    assert delta is not None
    heads, dim, width = delta.heads, delta.dim, delta.heads * delta.dim
    factored = b.has(d.name("ssm_g_a.weight"))
    parts = {"attn_q": width, "attn_k": width, "attn_v": width, "ssm_f_a": dim, "ssm_beta": heads}
    parts |= {"ssm_g_a": dim} if factored else {"ssm_g": width}
    matrices = [d.matrix(part, outputs, x.width) for part, outputs in parts.items()]
    q, k, v, f, beta, gate = linear(b, x, matrices, ("q", "k", "v", "f", "beta", "z"), norm=d.norm("attn_norm"))
    (decay,) = linear(b, f, [d.matrix("ssm_f_b", width, dim)], ("decay",))
    if factored:
        (gate,) = linear(b, gate, [d.matrix("ssm_g_b", width, dim)], ("gate",))
    rate = b.aligned(d.name("ssm_a"), heads, 1)
    shift = b.weight(d.name("ssm_dt.bias"), width)
    norm = RMSNorm(b.weight(d.name("ssm_norm.weight"), dim), d.spec.norm_eps)
    o, taps = Value("o", Rows.TOKENS, width), _taps(d, delta)
    b.add(DeltaAttend(q, k, v, decay, beta, gate, o, taps, Decay(rate, shift, delta.lowest), norm, layer, group))
    return o


def _taps(d: Decoder, delta: DeltaSpec) -> tuple[TensorInfo, TensorInfo, TensorInfo]:
    """Of q, k and v."""
    names = [d.name(f"ssm_conv1d_{part}.weight") for part in "qkv"]
    q, k, v = (d.b.aligned(name, delta.heads * delta.dim, delta.taps) for name in names)
    return q, k, v
