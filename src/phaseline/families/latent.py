"""Multi-head latent attention: what a file says of it, and the block it makes."""

import math
from dataclasses import replace

from phaseline.errors import FileFormatError
from phaseline.families.blocks import Decoder
from phaseline.families.rope import read_rope
from phaseline.families.spec import LatentSpec, Settings
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import HeadWeights, LatentAttend, RMSNorm, RopeSpec, gate, linear


def read_latent(s: Settings) -> LatentSpec:
    """The `attention.*` keys. Newer files state sizes of the absorbed form, one key head as wide as a stored row, and
    those of a head apart (`_mla`); older ones state the head's own."""
    rank, pe = s.integer("attention.kv_lora_rank", high=1 << 16), s.integer("rope.dimension_count", high=1024)
    head = s.integer("attention.key_length_mla", 0, low=0, high=4096)
    if head:
        value = s.integer("attention.value_length_mla", high=4096)
        s.only("attention.head_count_kv", 1)
        s.only("attention.key_length", rank + pe)
        s.only("attention.value_length", rank)
    else:
        head, value = (s.integer(f"attention.{part}_length", high=4096) for part in ("key", "value"))
        s.only("attention.head_count_kv", 1, s.integer("attention.head_count"))
    return _latent_spec(s, rank, pe, head, value)


def read_unturned_latent(s: Settings) -> LatentSpec:
    """The same of models that mark no positions, nor have such a layer everywhere. `attention.value_length` is what
    converters made of another setting; a head's own sizes are always stated."""
    rank, pe = s.integer("attention.kv_lora_rank", high=1 << 16), s.integer("rope.dimension_count", high=1024)
    s.only("attention.key_length", rank + pe)
    s.integer("attention.value_length", rank)
    s.number("rope.freq_base", 1e4)  # of what does not turn
    head, value = (s.integer(f"attention.{part}_length_mla", high=4096) for part in ("key", "value"))
    return _latent_spec(s, rank, pe, head, value)


def read_turned_latent(s: Settings) -> tuple[LatentSpec, RopeSpec]:
    """The same with rotation. Under yarn (Peng et al. 2023) it is the scores that grow, by (1 + m ln factor)^2, the
    file stating m; queries and rows do not."""
    latent = read_latent(s)
    s.only("rope.scaling.attn_factor", 1.0)
    rope = read_rope(s, latent.pe, s.integer("context_length"), halves=False)
    grown = s.number("rope.scaling.yarn_log_multiplier", 0.0, low=-1e-9)
    if not rope.yarn:
        return latent, rope
    grown = 1 + grown * math.log(max(1.0, rope.yarn.factor))
    return replace(latent, scale=latent.scale * grown**2), replace(rope, yarn=replace(rope.yarn, magnitude=1.0))


def _latent_spec(s: Settings, rank: int, pe: int, head: int, value: int) -> LatentSpec:
    if head <= pe:
        raise FileFormatError(f"{s.arch}: heads of {head} have no part beside the {pe} that all heads share")
    q_rank = s.integer("attention.q_lora_rank", 0, low=0, high=1 << 16)
    return LatentSpec(q_rank, rank, head - pe, pe, value, head**-0.5)


def latent_attention(d: Decoder, x: Value, rope: RopeSpec | None, layer: int, *, gated: bool = False) -> Value:
    """The latent attention of one layer to the normed rows, whose latents are layer `layer` of state group 0; its
    output still to be projected. gated: element by element, by a product of the same rows."""
    spec, latent, b = d.spec, d.spec.latent, d.b
    assert latent is not None
    heads, rank, nope, value = spec.heads, latent.rank, latent.nope, latent.value
    q_width, norm = heads * (nope + latent.pe), d.norm("attn_norm")
    first = ("attn_q_a", latent.q_rank) if latent.q_rank else ("attn_q", q_width)
    parts = dict([first, ("attn_kv_a_mqa", rank + latent.pe)]) | ({"attn_gate": heads * value} if gated else {})
    matrices = [d.matrix(part, outputs, x.width) for part, outputs in parts.items()]
    q, c, *z = linear(b, x, matrices, ("q", "c", "z")[: len(parts)], norm=norm)
    if latent.q_rank:
        (q,) = linear(b, q, [d.matrix("attn_q_b", q_width, q.width)], ("q",), norm=d.norm("attn_q_a_norm", q.width))
    if b.has(d.name("attn_kv_b.weight")):
        fused = d.matrix("attn_kv_b", heads * (nope + value), rank)
        k_b, v_b = HeadWeights(fused, heads, 0, nope, transposed=True), HeadWeights(fused, heads, nope, value)
    else:
        k_b = HeadWeights(b.weight(d.name("attn_k_b.weight"), heads, rank, nope), heads, 0, rank)
        v_b = HeadWeights(b.weight(d.name("attn_v_b.weight"), heads, value, rank), heads, 0, value)
    o = Value("o", Rows.TOKENS, heads * value)
    row_norm = RMSNorm(b.weight(d.name("attn_kv_a_norm.weight"), rank), spec.norm_eps)
    b.add(LatentAttend(q, c, o, row_norm, rope, k_b, v_b, latent.scale, layer))
    return gate(b, o, *z) if gated else o
