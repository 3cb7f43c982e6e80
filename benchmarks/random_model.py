"""Write a random model of a real one's proportions, for timing: weights of any file size without a download.

Blocks hold random codes with scales that keep activations of ordinary size; the vocabulary is made up. Answers mean
nothing, times do: kernels do not branch on values. Routing of random weights is close to uniform.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from numpy.typing import NDArray

from phaseline.files.quant import FORMATS

# Bytes of a block's half-precision factors: of the scale, of the minimum, and their ratio for a mean of zero.
FACTORS: Mapping[str, tuple[int, int | None, float]] = {
    "Q8_0": (0, None, 0.0),
    "Q4_1": (0, 2, -7.5),
    "Q4_K": (0, 2, 7.5),
    "Q6_K": (208, None, 0.0),
}


@dataclass
class RandomModel:
    """A GGUF file under construction; `format` is that of all matrices but routers, which are F32."""

    path: Path
    arch: str
    format: str = "Q4_K"
    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.out = GGUFWriter(self.path, self.arch, use_temp_file=True)

    def setting(self, key: str, value: float | int | bool) -> None:
        """One of the architecture's keys."""
        add: Callable[[str, Any], None] = self.out.add_uint32
        if isinstance(value, bool):
            add = self.out.add_bool
        elif isinstance(value, float):
            add = self.out.add_float32
        add(f"{self.arch}.{key}", value)

    def vocabulary(self, tokens: int) -> None:
        """Byte-level BPE of made-up merges: two control tokens, the bytes, then pairs of what is there."""
        printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
        spare = itertools.count(256)
        plain = [chr(b) if b in printable else chr(next(spare)) for b in range(256)]
        letters = "etaoinshrdlucmfwypvbgkqjxz"
        merges: list[tuple[str, str]] = []
        stems = list(letters)
        while len(merges) < tokens - 258:
            pairs = [(stem, letter) for stem in stems for letter in letters]
            merges += pairs
            stems = [a + b for a, b in pairs]
        merges = merges[: tokens - 258]
        plain += [a + b for a, b in merges]
        self.out.add_tokenizer_model("gpt2")
        self.out.add_tokenizer_pre("gpt-2")
        self.out.add_token_list(["<|bos|>", "<|eos|>", *plain])
        self.out.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * len(plain))
        self.out.add_token_merges([f"{a} {b}" for a, b in merges])
        self.out.add_bos_token_id(0)
        self.out.add_eos_token_id(1)
        self.out.add_add_bos_token(False)

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """A weight whose outputs are about as large as its inputs, times `gain`; shape (..., outputs, inputs)."""
        format, cols = FORMATS[self.format], shape[-1]
        rows = int(np.prod(shape[:-1]))
        raw = self.rng.integers(0, 256, (rows, cols // format.block, format.bytes), dtype=np.uint8)
        scale, minimum, ratio = FACTORS[self.format]

        def factors(d: float) -> None:
            raw[..., scale : scale + 2] = np.array([d], "<f2").view(np.uint8)
            if minimum is not None:
                raw[..., minimum : minimum + 2] = np.array([d * ratio], "<f2").view(np.uint8)

        factors(1.0)
        spread = format.decode_rows(raw[:64].reshape(min(rows, 64), -1)).std()
        factors(gain * cols**-0.5 / float(spread))
        self.out.add_tensor(name + ".weight", raw.reshape(*shape[:-1], -1), raw_dtype=GGMLQuantizationType[self.format])

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
    model.vocabulary(s.vocab)
    model.matrix("token_embd", s.vocab, s.width, gain=s.width**0.5)
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
    parser.add_argument("--format", choices=FACTORS, default="Q4_K", help="of all matrices")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write(args.path, args.shape, format=args.format, seed=args.seed)
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
