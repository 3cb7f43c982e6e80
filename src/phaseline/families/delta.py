"""Kimi delta attention: what a file says of it, and the block it makes."""

from phaseline.families.blocks import Decoder
from phaseline.families.spec import DeltaSpec, Settings
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Decay, DeltaAttend, RMSNorm, linear
from phaseline.program.state import Recurrent

_EVERY = 512  # positions from one kept snapshot to the next: a whole chunk, as chunks are by default


def read_delta(s: Settings) -> DeltaSpec:
    """Which layers carry a state, and its sizes: those are said to have no key heads, others share one."""
    layers, heads = s.integer("block_count"), s.integer("attention.head_count")
    keys = s.integers("attention.head_count_kv", layers, high=1)
    taps = s.integer("ssm.conv_kernel", low=2, high=64)
    return DeltaSpec(heads, s.integer("kda.head_dim", high=1024), taps, tuple(not n for n in keys))


def delta_state(delta: DeltaSpec) -> Recurrent:
    """What those layers carry on."""
    width = delta.heads * delta.dim
    parts = (("state", (delta.heads, delta.dim, delta.dim)), ("window", (delta.taps - 1, 3 * width)))
    return Recurrent(sum(delta.layers), parts, _EVERY)


def delta_attention(d: Decoder, x: Value, layer: int, group: int) -> Value:
    """x plus the delta attention of one layer, whose state is layer `layer` of state group `group`."""
    delta, b = d.spec.delta, d.b
    assert delta is not None
    heads, dim, width = delta.heads, delta.dim, delta.heads * delta.dim
    parts = {"attn_q": width, "attn_k": width, "attn_v": width, "ssm_f_a": dim, "ssm_g_a": dim, "ssm_beta": heads}
    matrices = [d.matrix(part, outputs, x.width) for part, outputs in parts.items()]
    q, k, v, f, z, beta = linear(b, x, matrices, ("q", "k", "v", "f", "z", "beta"), norm=d.norm("attn_norm"))
    (decay,) = linear(b, f, [d.matrix("ssm_f_b", width, dim)], ("decay",))
    (gate,) = linear(b, z, [d.matrix("ssm_g_b", width, dim)], ("gate",))
    rate = b.aligned(d.name("ssm_a"), heads, 1)
    shift = b.weight(d.name("ssm_dt.bias"), width)
    norm = RMSNorm(b.weight(d.name("ssm_norm.weight"), dim), d.spec.norm_eps)
    o, taps = Value("o", Rows.TOKENS, width), _taps(d, delta)
    b.add(DeltaAttend(q, k, v, decay, beta, gate, o, taps, Decay(rate, shift), norm, layer, group))
    return d.close(o, "attn_output", x)


def _taps(d: Decoder, delta: DeltaSpec) -> tuple[TensorInfo, TensorInfo, TensorInfo]:
    """Of q, k and v."""
    names = [d.name(f"ssm_conv1d_{part}.weight") for part in "qkv"]
    q, k, v = (d.b.aligned(name, delta.heads * delta.dim, delta.taps) for name in names)
    return q, k, v
