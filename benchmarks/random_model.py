"""Write a random model of a real one's proportions, for timing: weights of any file size without a download.

Blocks hold random codes whose values keep activations of ordinary size; the vocabulary is made up. Answers mean
nothing, times do: kernels do not branch on values. Routing by random weights is close to uniform.
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
    """A GGUF file under construction; `format` is that of all matrices but routers, which are F32."""

    path: Path
    arch: str
    format: str = "Q4_K"
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.blocks = sane_blocks(self.rng, FORMATS[self.format])
        self.out = GGUFWriter(self.path, self.arch, use_temp_file=True)

    def setting(self, key: str, value: float | int | bool) -> None:
        """One of the architecture's keys."""
        add: Callable[[str, Any], None] = self.out.add_uint32
        if isinstance(value, bool):
            add = self.out.add_bool
        elif isinstance(value, float):
            add = self.out.add_float32
        add(f"{self.arch}.{key}", value)

    def matrix(self, name: str, *shape: int) -> None:
        """A weight whose outputs are about as large as its inputs; shape (..., outputs, inputs)."""
        kind = FORMATS[self.format]
        raw = random_matrix(self.rng, kind, self.blocks, math.prod(shape[:-1]), shape[-1])
        raw = raw.reshape(*shape[:-1], -1)
        self.out.add_tensor(name + ".weight", raw, raw_dtype=GGMLQuantizationType[kind.name])

    def plain(self, name: str, values: NDArray[Any]) -> None:
        self.out.add_tensor(name + ".weight", values.astype(np.float32))

    def norm(self, name: str, width: int) -> None:
        self.plain(name, np.ones(width))

    def close(self) -> None:
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


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


SHAPES: Mapping[str, tuple[str, Sizes]] = {
    # OLMoE-1B-7B's ratios at 1.0e9 parameters, 0.2e9 of them active.
    "sparse": ("olmoe", Sizes(9, 1024, 512, 16, 16, experts=64, active=8)),
    # As many active parameters, all of them shared.
    "dense": ("llama", Sizes(9, 1024, 4096, 16, 16)),
    "tiny-sparse": ("olmoe", Sizes(2, 256, 256, 4, 4, vocab=512, context=512, experts=8, active=2)),
    "tiny-dense": ("llama", Sizes(2, 256, 512, 4, 4, vocab=512, context=512)),
}


def write(path: Path, shape: str, *, format: str = "Q4_K", seed: int = 0) -> Path:
    """A random model of one of the shapes."""
    arch, s = SHAPES[shape]
    model, head = RandomModel(path, arch, format, seed), s.width // s.heads
    settings: dict[str, float | int | bool] = {
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
    for key, value in settings.items():
        model.setting(key, value)
    vocabulary(model.out, s.vocab)
    model.matrix("token_embd", s.vocab, s.width)
    for layer in range(s.layers):
        _layer(model, f"blk.{layer}.", s, head)
    model.norm("output_norm", s.width)
    model.matrix("output", s.vocab, s.width)
    model.close()
    return path


def _layer(model: RandomModel, at: str, s: Sizes, head: int) -> None:
    q, kv = s.heads * head, s.kv_heads * head
    for norm in ("attn_norm", "ffn_norm"):
        model.norm(at + norm, s.width)
    if model.arch == "olmoe":
        model.norm(at + "attn_q_norm", q)
        model.norm(at + "attn_k_norm", kv)
    for part, outputs, inputs in (("q", q, s.width), ("k", kv, s.width), ("v", kv, s.width), ("output", s.width, q)):
        model.matrix(f"{at}attn_{part}", outputs, inputs)
    if not s.experts:
        model.matrix(at + "ffn_gate", s.ff, s.width)
        model.matrix(at + "ffn_up", s.ff, s.width)
        model.matrix(at + "ffn_down", s.width, s.ff)
        return
    model.plain(at + "ffn_gate_inp", model.rng.normal(0, s.width**-0.5, (s.experts, s.width)))
    model.matrix(at + "ffn_gate_exps", s.experts, s.ff, s.width)
    model.matrix(at + "ffn_up_exps", s.experts, s.ff, s.width)
    model.matrix(at + "ffn_down_exps", s.experts, s.width, s.ff)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--format", choices=BLOCKS, default="Q4_K", help="of all matrices")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.path, args.shape, format=args.format, seed=args.seed)
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
