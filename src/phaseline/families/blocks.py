"""What decoders share: from the tensors of a layer to its operations. A family says which, and what differs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from phaseline.errors import UnsupportedError
from phaseline.families.spec import ModelSpec
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Builder, Program, Rows, Value
from phaseline.program.ops import (
    Activation,
    Attend,
    Embed,
    LayerNorm,
    Norm,
    RMSNorm,
    Rope,
    RopeSpec,
    SelectRows,
    linear,
    normalise,
)
from phaseline.program.state import PagedKV, SlidingKV, StateSpec


@dataclass
class Decoder:
    """A decoder under construction, over the tensors of a file, by the names that GGUF gives them.

    layer_norm: norms take the mean away and have a bias. biased: so has every product but the head.
    """

    spec: ModelSpec
    tensors: Mapping[str, TensorInfo]
    layer_norm: bool = False
    biased: bool = False
    b: Builder = field(init=False)
    groups: dict[int | None, int] = field(default_factory=dict)  # window -> layers so far

    def __post_init__(self) -> None:
        self.b = Builder(self.tensors)

    def layers(self) -> Iterator[int]:
        """Each layer in turn; what is added meanwhile belongs to it."""
        for layer in range(self.spec.layers):
            self.b.layer = layer
            yield layer
        self.b.layer = -1

    def name(self, part: str) -> str:
        """A tensor of the present layer, or of none."""
        return part if self.b.layer < 0 else f"blk.{self.b.layer}.{part}"

    def norm(self, part: str, width: int | None = None) -> Norm:
        width = width or self.spec.width
        weight = self.b.weight(self.name(part) + ".weight", width)
        if not self.layer_norm:
            return RMSNorm(weight, self.spec.norm_eps)
        return LayerNorm(weight, self.b.weight(self.name(part) + ".bias", width), self.spec.norm_eps)

    def matrix(self, part: str, outputs: int, inputs: int) -> TensorInfo:
        return self.b.weight(self.name(part) + ".weight", outputs, inputs)

    def biases(self, parts: Mapping[str, int]) -> list[TensorInfo]:
        """Of these parts, with their widths."""
        return [self.b.weight(self.name(part) + ".bias", width) for part, width in parts.items()]

    def rope(self) -> RopeSpec:
        """As the settings have it, with the factors that a file of Llama 3's kind brings along."""
        rope = self.spec.rope
        assert rope is not None
        if not self.b.has("rope_freqs.weight"):
            return rope
        return replace(rope, factors=self.b.weight("rope_freqs.weight", rope.dims // 2))

    def embed(self, *, scale: float = 1.0, learned_positions: bool = False) -> Value:
        spec, x = self.spec, Value("x", Rows.TOKENS, self.spec.width)
        positions = self.b.weight("position_embd.weight", spec.context, spec.width) if learned_positions else None
        self.b.add(Embed(self.b.weight("token_embd.weight", spec.vocab, spec.width), x, scale, positions))
        return x

    def qkv(self, x: Value, *, biased: bool = False, fused: bool = False) -> tuple[Value, Value, Value]:
        """Queries, keys and values of the normed rows; `fused`: from one matrix."""
        spec = self.spec
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        widths = [q_width, kv_width, kv_width]
        parts = {"attn_qkv": sum(widths)} if fused else dict(zip(("attn_q", "attn_k", "attn_v"), widths, strict=True))
        q, k, v = linear(
            self.b,
            x,
            [self.matrix(part, width, spec.width) for part, width in parts.items()],
            ("q", "k", "v"),
            widths=widths if fused else None,
            norm=self.norm("attn_norm"),
            biases=self.biases(parts) if biased or self.biased else (),
        )
        return q, k, v

    def turn(self, x: Value, rope: RopeSpec) -> Value:
        """Heads rotated by their row's position."""
        out = Value(x.name + "'", x.rows, x.width)
        self.b.add(Rope(x, out, self.spec.head_dim, rope))
        return out

    def attend(self, q: Value, k: Value, v: Value, *, scale: float | None = None, window: int | None = None) -> Value:
        """Causal attention, over the `window` latest positions if stated; `scale` of the scores is 1 / sqrt(head size)
        where not stated. Layers of one window share a state group."""
        spec, o = self.spec, Value("o", Rows.TOKENS, q.width)
        scale = spec.head_dim**-0.5 if scale is None else scale
        layer = self.groups.get(window, 0)
        self.groups[window] = layer + 1
        group = list(self.groups).index(window)
        self.b.add(Attend(q, k, v, o, layer, spec.heads, spec.kv_heads, spec.head_dim, scale, group, window))
        return o

    def close(self, h: Value, part: str, x: Value | None, *, post_norm: str | None = None, name: str = "x") -> Value:
        """x, if any, plus the product of h with the matrix `part`, normed first where a norm is named; as `name`."""
        width = self.spec.width
        (y,) = linear(
            self.b,
            h,
            [self.matrix(part, width, h.width)],
            ("y" if post_norm else name,),
            biases=self.biases({part: width}) if self.biased else (),
            residual=None if post_norm else x,
        )
        return normalise(self.b, y, self.norm(post_norm), name, residual=x) if post_norm else y

    def attention(
        self,
        x: Value,
        *,
        rope: RopeSpec | None = None,
        biased: bool = False,
        qk_norm: Literal["head", "row"] | None = None,
        scale: float | None = None,
        window: int | None = None,
        post_norm: str | None = None,
    ) -> Value:
        """x plus the attention of one layer. rope: the settings' own where not stated. biased: queries, keys and values
        are. qk_norm: queries and keys are normed before they turn, each head apart or the row as a whole."""
        q, k, v = self.qkv(x, biased=biased)
        if qk_norm:
            q, k = (
                normalise(self.b, y, self.norm(part, self.spec.head_dim if qk_norm == "head" else y.width), y.name)
                for y, part in ((q, "attn_q_norm"), (k, "attn_k_norm"))
            )
        rope = rope or self.rope()
        q, k = self.turn(q, rope), self.turn(k, rope)
        return self.close(self.attend(q, k, v, scale=scale, window=window), "attn_output", x, post_norm=post_norm)

    def gated(
        self,
        x: Value,
        *,
        source: Value | None = None,
        activation: Activation = Activation.SILU,
        post_norm: str | None = None,
    ) -> Value:
        """x plus what act(gate) * up, then down (Shazeer 2020), make of the normed `source`, or of x itself."""
        gate_up = [self.matrix(part, self.spec.ff, x.width) for part in ("ffn_gate", "ffn_up")]
        (h,) = linear(self.b, source or x, gate_up, ("h",), norm=self.norm("ffn_norm"), gate=activation)
        return self.close(h, "ffn_down", x, post_norm=post_norm)

    def finish(self, x: Value, state: Sequence[StateSpec] | None = None) -> Program:
        """The head over the wanted rows, from the embedding where the file has no other; all tensors must be used.

        state: what the layers remember, where it is not keys and values.
        """
        spec, b = self.spec, self.b
        last = Value("last", Rows.WANTED, spec.width)
        b.add(SelectRows(x, last))
        head = "output" if b.has("output.weight") else "token_embd"
        table = self.matrix(head, spec.vocab, spec.width)
        (logits,) = linear(b, last, [table], ("logits",), norm=self.norm("output_norm"))
        if b.unused():
            unused = b.unused()[0]
            raise UnsupportedError(f"{spec.arch}: tensor {unused!r} has no part in this architecture as built here")
        if state is None:
            sizes = (spec.kv_heads, spec.head_dim)
            state = [PagedKV(n, *sizes) if w is None else SlidingKV(n, *sizes, w) for w, n in self.groups.items()]
        return Program(b.ops, b.layers, tuple(state), logits, spec.vocab, spec.context)
