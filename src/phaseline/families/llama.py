"""Llama and its kin: RMSNorm, rotary positions, grouped queries, SwiGLU."""

from collections.abc import Mapping
from typing import Any

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.families.spec import ModelSpec, Settings
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Program, Rows, Value
from phaseline.program.ops import Attend, Embed, RMSNorm, Rope, RopeSpec, SelectRows, linear
from phaseline.program.state import PagedKV


def spec_from(meta: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelSpec:
    """Sizes from the file's `llama.*` keys."""
    s = Settings(meta, "llama")
    width, heads = s.integer("embedding_length"), s.integer("attention.head_count", high=4096)
    head_dim = s.integer("attention.key_length", width // heads, high=1024)
    spec = ModelSpec(
        arch="llama",
        layers=s.integer("block_count", high=4096),
        width=width,
        ff=s.integer("feed_forward_length"),
        heads=heads,
        kv_heads=s.integer("attention.head_count_kv", heads, high=4096),
        head_dim=head_dim,
        vocab=s.integer("vocab_size", _rows(tensors, "token_embd.weight")),
        context=s.integer("context_length"),
        norm_eps=s.number("attention.layer_norm_rms_epsilon"),
        rope_dims=s.integer("rope.dimension_count", head_dim, high=1024),
        rope_base=s.number("rope.freq_base", 10000.0),
    )
    s.only("attention.value_length", spec.head_dim)
    s.only("rope.scaling.type", "none")
    s.only("rope.scaling.factor", 0.0, 1.0)
    s.only("expert_count", 0)
    s.only("expert_used_count", 0)
    s.refuse_unread()
    if spec.heads % spec.kv_heads:
        raise FileFormatError(f"llama: {spec.heads} query heads do not split over {spec.kv_heads} key heads")
    if spec.rope_dims % 2 or spec.rope_dims > spec.head_dim:
        raise FileFormatError(f"llama: rope.dimension_count {spec.rope_dims} must be even and within {spec.head_dim}")
    if spec.head_dim % 2:
        raise UnsupportedError(f"llama: head size {spec.head_dim} is odd; supported: even sizes")
    return spec


def build(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Program:
    """The program of one step."""
    b = Builder(tensors)
    w, d, kv = b.weight, spec.width, spec.kv_heads * spec.head_dim
    q_width = spec.heads * spec.head_dim
    rope = RopeSpec(spec.rope_dims, spec.rope_base)
    embedding = w("token_embd.weight", spec.vocab, d)

    def norm(name: str) -> RMSNorm:
        return RMSNorm(w(name + ".weight", d), spec.norm_eps)

    x = Value("x", Rows.TOKENS, d)
    b.add(Embed(embedding, x))
    for b.layer in range(spec.layers):
        p = f"blk.{b.layer}."
        qkv = [w(p + f"attn_{n}.weight", o, d) for n, o in (("q", q_width), ("k", kv), ("v", kv))]
        q, k, v = linear(b, x, qkv, ("q", "k", "v"), norm=norm(p + "attn_norm"))
        turned_q, turned_k = Value("q'", Rows.TOKENS, q_width), Value("k'", Rows.TOKENS, kv)
        b.add(Rope(q, turned_q, spec.head_dim, rope))
        b.add(Rope(k, turned_k, spec.head_dim, rope))
        o = Value("o", Rows.TOKENS, q_width)
        scale = spec.head_dim**-0.5
        b.add(Attend(turned_q, turned_k, v, o, b.layer, spec.heads, spec.kv_heads, spec.head_dim, scale))
        (x,) = linear(b, o, [w(p + "attn_output.weight", d, q_width)], ("x",), residual=x)
        gate_up = [w(p + "ffn_gate.weight", spec.ff, d), w(p + "ffn_up.weight", spec.ff, d)]
        (h,) = linear(b, x, gate_up, ("h",), norm=norm(p + "ffn_norm"), gate=True)
        (x,) = linear(b, h, [w(p + "ffn_down.weight", d, spec.ff)], ("x",), residual=x)
    b.layer = -1
    last = Value("last", Rows.WANTED, d)
    b.add(SelectRows(x, last))
    head = w("output.weight", spec.vocab, d) if b.has("output.weight") else embedding
    (logits,) = linear(b, last, [head], ("logits",), norm=norm("output_norm"))
    if b.unused():
        raise UnsupportedError(f"llama: tensor {b.unused()[0]!r} has no part in this architecture as built here")
    state = (PagedKV(spec.layers, spec.kv_heads, spec.head_dim),)
    return Program(b.ops, b.layers, state, logits, spec.vocab, spec.context)


def _rows(tensors: Mapping[str, TensorInfo], name: str) -> int:
    if name not in tensors:
        raise FileFormatError(f"tensor {name!r} is missing from the file")
    return tensors[name].shape[0]
