"""Write a model of a published dense one's shape, with random weights: for timing alone.

python benchmarks/real_shapes.py gpt2-small gpt2-small.gguf --type F32
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from format_model import vocabulary
from random_model import RandomModel

from phaseline.files.quant import FORMATS


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder whose embedding is its head: gpt2, qwen3 or gemma3, whose local layers have a window."""

    arch: str
    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float = 1e4
    window: int = 0

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of each of a layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {"attn_output": (self.width, q), "ffn_up": (self.ff, self.width), "ffn_down": (self.width, self.ff)}
        if self.arch == "gpt2":
            return shapes | {"attn_qkv": (q + 2 * kv, self.width)}
        shapes |= {"attn_q": (q, self.width), "attn_k": (kv, self.width), "attn_v": (kv, self.width)}
        return shapes | {"ffn_gate": (self.ff, self.width)}

    def norms(self) -> dict[str, int]:
        """Widths of those of a layer."""
        named = {"attn_norm": self.width, "ffn_norm": self.width}
        if self.arch != "gpt2":
            named |= {"attn_q_norm": self.head_dim, "attn_k_norm": self.head_dim}
        if self.arch == "gemma3":
            named |= {"post_attention_norm": self.width, "post_ffw_norm": self.width}
        return named

    def settings(self) -> dict[str, float | int]:
        """The architecture's keys."""
        keys: dict[str, float | int] = {
            "context_length": self.context,
            "embedding_length": self.width,
            "block_count": self.layers,
            "feed_forward_length": self.ff,
            "attention.head_count": self.heads,
            "vocab_size": self.vocab,
        }
        if self.arch == "gpt2":
            return keys | {"attention.layer_norm_epsilon": 1e-5}
        keys |= {"attention.head_count_kv": self.kv_heads, "rope.freq_base": self.rope_base}
        keys |= {"attention.key_length": self.head_dim, "attention.value_length": self.head_dim}
        keys |= {"attention.layer_norm_rms_epsilon": 1e-6}
        return keys | ({"attention.sliding_window": self.window} if self.window else {})


SHAPES = {
    "gpt2-small": Shape("gpt2", 12, 768, 3072, 12, 12, 64, vocab=50257, context=1024),
    "qwen3-0.6b": Shape("qwen3", 28, 1024, 3072, 16, 8, 128, vocab=151936, context=40960, rope_base=1e6),
    "gemma-3-270m": Shape("gemma3", 18, 640, 2048, 4, 1, 256, vocab=262144, context=32768, rope_base=1e6, window=512),
}


def write(path: Path, shape: Shape, *, format: str) -> None:
    """A random model of the shape; its matrices are of the format, norms, biases and positions F32."""
    model = RandomModel(path, shape.arch, format)
    for key, value in shape.settings().items():
        model.setting(key, value)
    vocabulary(model.out, shape.vocab)
    model.matrix("token_embd", shape.vocab, shape.width)
    model.norm("output_norm", shape.width)
    for at in (f"blk.{layer}." for layer in range(shape.layers)):
        for name, (outputs, inputs) in shape.matrices().items():
            model.matrix(at + name, outputs, inputs)
        for name, width in shape.norms().items():
            model.norm(at + name, width)
        if shape.arch == "gpt2":
            widths = {name: outputs for name, (outputs, _) in shape.matrices().items()} | shape.norms()
            for name, width in widths.items():
                model.plain(f"{at}{name}.bias", model.rng.normal(0, 0.02, width))
    if shape.arch == "gpt2":
        model.plain("output_norm.bias", np.zeros(shape.width))
        model.plain("position_embd.weight", model.rng.normal(0, 0.02, (shape.context, shape.width)))
    model.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", choices=FORMATS, default="F32", metavar="TYPE", help="of all matrices (F32)")
    args = parser.parse_args()
    write(args.out, SHAPES[args.shape], format=args.type)
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
