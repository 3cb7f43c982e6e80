"""Write a random model of a real one's proportions, for timing: weights of any file size without a download.

Blocks hold random codes whose values keep activations of ordinary size; the vocabulary is made up. Answers mean
nothing, times do: kernels do not branch on values. Routing by random weights is skewed: count the experts.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from format_model import random_matrix, sane_blocks, vocabulary
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from phaseline.files.quant import FORMATS

BLOCKS = tuple(name for name, format in FORMATS.items() if format.block > 1)


@dataclass
class RandomModel:
    """A GGUF file under construction; `format` is that of all matrices but routers, which are F32, and routed experts,
    where these have a format of their own."""

    path: Path
    arch: str
    format: str = "Q4_K"
    seed: int = 0
    experts_format: str | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        used = dict.fromkeys((self.format, "Q8_0", self.experts_format or "Q8_0"))
        self.blocks = {name: sane_blocks(self.rng, FORMATS[name]) for name in used}
        self.out = GGUFWriter(self.path, self.arch, use_temp_file=True)

    def setting(self, key: str, value: float | int | bool | list[int]) -> None:
        """One of the architecture's keys."""
        add: Callable[[str, Any], None] = self.out.add_uint32
        if isinstance(value, list):
            add = self.out.add_array
        elif isinstance(value, bool):
            add = self.out.add_bool
        elif isinstance(value, float):
            add = self.out.add_float32
        add(f"{self.arch}.{key}", value)

    def matrix(self, name: str, *shape: int) -> None:
        """A weight whose outputs are about as large as its inputs; shape (..., outputs, inputs). Rows that the format's
        blocks do not fill are in Q8_0."""
        wanted = (name.endswith("_exps") and self.experts_format) or self.format
        kind = FORMATS[wanted if shape[-1] % FORMATS[wanted].block == 0 else "Q8_0"]
        raw = random_matrix(self.rng, kind, self.blocks[kind.name], math.prod(shape[:-1]), shape[-1])
        raw = raw.reshape(*shape[:-1], -1)
        self.out.add_tensor(name + ".weight", raw, raw_dtype=GGMLQuantizationType[kind.name])

    def plain(self, name: str, values: NDArray[Any]) -> None:
        self.out.add_tensor(name, values.astype(np.float32))

    def norm(self, name: str, width: int) -> None:
        self.plain(name + ".weight", np.ones(width))

    def close(self) -> None:
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


@dataclass(frozen=True)
class Latent:
    """Of latent attention: ranks of queries (0: none) and of latents, a head's parts that turn not and turn, and its
    value."""

    q_rank: int
    rank: int
    nope: int
    pe: int
    value: int


@dataclass(frozen=True)
class Delta:
    """Of delta attention: a head's size; every `period`th layer has latent attention instead."""

    dim: int
    period: int = 4
    taps: int = 4


@dataclass(frozen=True)
class K3:
    """What Kimi K3 has besides: the width of the space that routed experts work in, and every how many layers a row is
    banked."""

    space: int
    bank_every: int


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    vocab: int = 32000
    context: int = 4096
    experts: int = 0
    active: int = 0
    expert_ff: int = 0  # where it differs from that of dense layers
    shared: int = 0  # experts for every row
    dense: int = 0  # layers without experts before the others
    latent: Latent | None = None
    delta: Delta | None = None
    k3: K3 | None = None

    def carries(self, layer: int) -> bool:
        """Whether a layer has delta attention."""
        return self.delta is not None and (layer + 1) % self.delta.period > 0


SHAPES: Mapping[str, tuple[str, Sizes]] = {
    # OLMoE-1B-7B's ratios at 1.0e9 parameters, 0.2e9 of them active.
    "sparse": ("olmoe", Sizes(9, 1024, 512, 16, 16, experts=64, active=8)),
    # As many active parameters, all of them shared.
    "dense": ("llama", Sizes(9, 1024, 4096, 16, 16)),
    "tiny-sparse": ("olmoe", Sizes(2, 256, 256, 4, 4, vocab=512, context=512, experts=8, active=2)),
    "tiny-dense": ("llama", Sizes(2, 256, 512, 4, 4, vocab=512, context=512)),
    # DeepSeek-V2-Lite's attention with V2's low rank of queries, half its width, half its experts.
    "latent": (
        "deepseek2",
        Sizes(9, 1024, 2816, 16, 1, 32000, 16384, 32, 6, 768, 2, 1, Latent(512, 512, 128, 64, 128)),
    ),
    "tiny-latent": (
        "deepseek2",
        Sizes(2, 256, 512, 4, 1, 512, 512, 8, 2, 256, 1, 1, Latent(64, 64, 32, 16, 32)),
    ),
    # Kimi-Linear-48B-A3B's layers at 0.44 of its width: 0.76e9 parameters, of which a row multiplies 0.24e9.
    "linear": (
        "kimi-linear",
        Sizes(12, 1024, 4096, 16, 1, 32000, 16384, 32, 4, 512, 1, 1, Latent(0, 512, 128, 64, 128), Delta(128)),
    ),
    "tiny-linear": (
        "kimi-linear",
        Sizes(4, 256, 512, 4, 1, 512, 1024, 8, 2, 256, 1, 1, Latent(0, 64, 32, 16, 32), Delta(32)),
    ),
    # Kimi K3's layers at a seventh of its width, eight of 93: 1.5e9 parameters, of which a row multiplies 0.26e9.
    "k3": (
        "kimi-k3",
        Sizes(
            8, 1024, 4864, 14, 1, 32000, 4096, 64, 6, 2048, 1, 1, Latent(256, 256, 128, 64, 128), Delta(128), K3(512, 2)
        ),
    ),
    "tiny-k3": (
        "kimi-k3",
        Sizes(4, 256, 512, 4, 1, 512, 1024, 8, 2, 256, 1, 1, Latent(64, 64, 32, 16, 32), Delta(32), K3(256, 2)),
    ),
}


def write(path: Path, shape: str, *, format: str = "Q4_K", seed: int = 0, experts_format: str | None = None) -> Path:
    """A random model of one of the shapes."""
    arch, s = SHAPES[shape]
    model, head = RandomModel(path, arch, format, seed, experts_format), s.width // s.heads
    settings: dict[str, float | int | bool | list[int]] = {
        "context_length": s.context,
        "embedding_length": s.width,
        "block_count": s.layers,
        "feed_forward_length": s.ff,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head,
        "rope.freq_base": 10000.0,
        "vocab_size": s.vocab,
    }
    if s.experts:
        settings |= {"expert_count": s.experts, "expert_used_count": s.active}
    if s.expert_ff:
        settings |= {"expert_feed_forward_length": s.expert_ff, "expert_shared_count": s.shared}
        settings |= {"leading_dense_block_count": s.dense, "expert_weights_scale": 1.0}
    if s.latent:
        own = s.latent
        settings |= {"attention.kv_lora_rank": own.rank}
        settings |= {"attention.q_lora_rank": own.q_rank} if own.q_rank else {}
        settings |= {"attention.key_length": own.rank + own.pe, "attention.value_length": own.rank}
        settings |= {"attention.key_length_mla": own.nope + own.pe, "attention.value_length_mla": own.value}
        settings |= {"rope.dimension_count": own.pe}
    if s.delta:
        settings |= {"kda.head_dim": s.delta.dim, "ssm.conv_kernel": s.delta.taps, "expert_gating_func": 2}
        settings |= {"attention.head_count_kv": [int(not s.carries(layer)) for layer in range(s.layers)]}
    if s.k3:
        settings |= {"kda.gate_lower_bound": -5.0, "activation.situ_beta": 4.0, "activation.situ_linear_beta": 25.0}
        settings |= {"expert_latent_length": s.k3.space, "attn_res.block_size": s.k3.bank_every}
        settings |= {"expert_weights_norm": True}
    for key, value in settings.items():
        model.setting(key, value)
    vocabulary(model.out, s.vocab)
    model.matrix("token_embd", s.vocab, s.width)
    for layer in range(s.layers):
        at = f"blk.{layer}."
        for part in ("attn", "ffn"):
            model.norm(f"{at}{part}_norm", s.width)
            if s.k3:
                model.plain(f"{at}{part}_res_score.weight", model.rng.normal(0, s.width**-0.5, s.width))
        if s.delta and s.carries(layer):
            _delta(model, at, s, s.delta)
        elif s.latent:
            _latent(model, at, s, s.latent)
        else:
            _attention(model, at, s, head)
        if s.experts and layer >= s.dense:
            _experts(model, at, s)
        else:
            _gated(model, at, s.width, s.ff)
    model.norm("output_norm", s.width)
    if s.k3:
        model.plain("output_res_score.weight", model.rng.normal(0, s.width**-0.5, s.width))
    model.matrix("output", s.vocab, s.width)
    model.close()
    return path


def _attention(model: RandomModel, at: str, s: Sizes, head: int) -> None:
    q, kv = s.heads * head, s.kv_heads * head
    if model.arch == "olmoe":
        model.norm(at + "attn_q_norm", q)
        model.norm(at + "attn_k_norm", kv)
    for part, outputs, inputs in (("q", q, s.width), ("k", kv, s.width), ("v", kv, s.width), ("output", s.width, q)):
        model.matrix(f"{at}attn_{part}", outputs, inputs)


def _latent(model: RandomModel, at: str, s: Sizes, own: Latent) -> None:
    if own.q_rank:
        model.matrix(at + "attn_q_a", own.q_rank, s.width)
        model.norm(at + "attn_q_a_norm", own.q_rank)
    model.matrix(at + ("attn_q_b" if own.q_rank else "attn_q"), s.heads * (own.nope + own.pe), own.q_rank or s.width)
    model.matrix(at + "attn_kv_a_mqa", own.rank + own.pe, s.width)
    model.norm(at + "attn_kv_a_norm", own.rank)
    model.matrix(at + "attn_k_b", s.heads, own.rank, own.nope)
    model.matrix(at + "attn_v_b", s.heads, own.value, own.rank)
    if s.k3:
        model.matrix(at + "attn_gate", s.heads * own.value, s.width)
    model.matrix(at + "attn_output", s.width, s.heads * own.value)


def _delta(model: RandomModel, at: str, s: Sizes, own: Delta) -> None:
    inner = s.heads * own.dim
    for part in "qkv":
        model.matrix(f"{at}attn_{part}", inner, s.width)
        model.plain(f"{at}ssm_conv1d_{part}.weight", model.rng.normal(0, own.taps**-0.5, (1, inner, 1, own.taps)))
    if s.k3:
        model.matrix(at + "ssm_g", inner, s.width)
    for part in "f" if s.k3 else "fg":
        model.matrix(f"{at}ssm_{part}_a", own.dim, s.width)
        model.matrix(f"{at}ssm_{part}_b", inner, own.dim)
    model.matrix(at + "ssm_beta", s.heads, s.width)
    model.plain(at + "ssm_a", -np.exp(model.rng.normal(0, 0.5, s.heads if s.k3 else (1, 1, s.heads, 1))))
    model.plain(at + "ssm_dt.bias", model.rng.normal(-3, 1, inner))
    model.norm(at + "ssm_norm", own.dim)
    model.matrix(at + "attn_output", s.width, inner)


def _gated(model: RandomModel, at: str, width: int, ff: int, end: str = "", *count: int) -> None:
    model.matrix(f"{at}ffn_gate{end}", *count, ff, width)
    model.matrix(f"{at}ffn_up{end}", *count, ff, width)
    model.matrix(f"{at}ffn_down{end}", *count, width, ff)


def _experts(model: RandomModel, at: str, s: Sizes) -> None:
    ff = s.expert_ff or s.ff
    model.plain(at + "ffn_gate_inp.weight", model.rng.normal(0, s.width**-0.5, (s.experts, s.width)))
    if s.delta:
        model.plain(at + "exp_probs_b.bias", np.zeros(s.experts))
    if s.k3:
        model.matrix(at + "ffn_routed_down", s.k3.space, s.width)
        model.matrix(at + "ffn_routed_up", s.width, s.k3.space)
        model.norm(at + "ffn_routed_norm", s.k3.space)
    _gated(model, at, s.k3.space if s.k3 else s.width, ff, "_exps", s.experts)
    if s.shared:
        _gated(model, at, s.width, ff * s.shared, "_shexp")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--format", choices=BLOCKS, default="Q4_K", help="of all matrices")
    parser.add_argument("--experts-format", choices=BLOCKS, help="of routed experts, where not the same")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.path, args.shape, format=args.format, seed=args.seed, experts_format=args.experts_format)
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
