"""Tiny random models on disk, complete enough for Phaseline and for llama.cpp."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType
from numpy.typing import NDArray

BOS, EOS = 0, 1  # ids of <|bos|> and <|eos|>; the 256 byte tokens follow, then one token per merge
SMALLEST_VOCAB = 258

# Blocks that the gguf package reads but can't write: place of the f16 factor, place of the f16 factor of the minimum,
# and the ratio of the two that gives values a mean of zero. IQ1_M's factor is scattered.
_RANDOM_BLOCKS: Mapping[str, tuple[int | None, int | None, float]] = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0.0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0.0),
    "IQ1_M": (None, None, 0.0),
} | dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"), (0, None, 0.0))


def write_llama(
    path: Path,
    *,
    format: str = "F32",
    formats: Mapping[str, str] | None = None,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ff: int = 128,
    vocab: int = 320,
    context: int = 256,
    tied: bool = False,
    rope_theta: float = 10000.0,
    seed: int = 0,
    add_bos: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random llama-architecture GGUF and return its path.

    `format` is that of all matrices, `formats` overrides it for tensors whose name contains a key; norms are F32.
    A format of blocks needs rows (width, ff, heads * head_dim) of whole blocks: 32, or 256 for most formats.
    `extra` adds metadata keys or replaces those written here.
    """
    rng = np.random.default_rng(seed)
    size = head_dim or width // heads
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(rope_theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    _add_tokenizer(writer, vocab, add_bos)
    for key, value in (extra or {}).items():
        writer.add_key_value(key, value, GGUFValueType.get_type(value))

    def add_matrix(name: str, rows: int, cols: int, std: float) -> None:
        chosen = next((f for part, f in (formats or {}).items() if part in name), format)
        writer.add_tensor(name, encode(rng, chosen, rows, cols, std), raw_dtype=GGMLQuantizationType[chosen])

    def add_norm(name: str, mean: float = 1.0, std: float = 0.1) -> None:
        writer.add_tensor(name, rng.normal(mean, std, width).astype(np.float32))

    add_matrix("token_embd.weight", vocab, width, 1.0)
    for n in range(layers):
        add_norm(f"blk.{n}.attn_norm.weight")
        add_matrix(f"blk.{n}.attn_q.weight", heads * size, width, width**-0.5)
        add_matrix(f"blk.{n}.attn_k.weight", kv_heads * size, width, width**-0.5)
        add_matrix(f"blk.{n}.attn_v.weight", kv_heads * size, width, width**-0.5)
        # Twice the usual: attention averages its values, and what it reads must matter to the answer.
        add_matrix(f"blk.{n}.attn_output.weight", width, heads * size, 2 * (heads * size) ** -0.5)
        add_norm(f"blk.{n}.ffn_norm.weight")
        add_matrix(f"blk.{n}.ffn_gate.weight", ff, width, width**-0.5)
        add_matrix(f"blk.{n}.ffn_up.weight", ff, width, width**-0.5)
        add_matrix(f"blk.{n}.ffn_down.weight", width, ff, ff**-0.5)
    if tied:  # weights of random sign, or every token would predict itself
        add_norm("output_norm.weight", 0.0, 2 * width**-0.5)
    else:
        add_norm("output_norm.weight")
        add_matrix("output.weight", vocab, width, 2 * width**-0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def encode(rng: np.random.Generator, format: str, rows: int, cols: int, std: float) -> NDArray[Any]:
    """A random matrix of the given standard deviation, (rows, cols), encoded as the gguf package's writer wants it."""
    if format in _RANDOM_BLOCKS:
        return _random_blocks(rng, format, rows, cols, std)
    values = rng.normal(0.0, std, (rows, cols)).astype(np.float32)
    return gguf.quants.quantize(values, GGMLQuantizationType[format])


def _random_blocks(rng: np.random.Generator, format: str, rows: int, cols: int, std: float) -> NDArray[np.uint8]:
    factor, minimum, ratio = _RANDOM_BLOCKS[format]
    elements, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[format]]
    raw = rng.integers(0, 256, (rows, cols // elements, block_bytes), dtype=np.uint8)
    jitter = rng.uniform(0.5, 1.5, (rows, cols // elements, 1))

    def set_factors(scale: float) -> None:
        half = (scale * jitter).astype("<f2")
        if factor is None:  # four bits in the top of each of the last four words
            raw[..., -7::2] = raw[..., -7::2] & 15 | (half.view("<u2") >> np.array([0, 4, 8, 12]) & 15) << 4
        else:
            raw[..., factor : factor + 2] = half.view(np.uint8)
        if minimum is not None:
            raw[..., minimum : minimum + 2] = (scale * ratio * jitter).astype("<f2").view(np.uint8)

    set_factors(1.0)
    set_factors(std / gguf.quants.dequantize(raw, GGMLQuantizationType[format]).std())
    return raw.reshape(rows, -1)


def _add_tokenizer(writer: GGUFWriter, vocab: int, add_bos: bool) -> None:
    """A byte-level BPE vocabulary: two control tokens, the 256 bytes, and merges of common letters up to `vocab`."""
    merges = list(itertools.islice(_merges(), vocab - SMALLEST_VOCAB))
    plain = [*_byte_symbols(), *(left + right for left, right in merges)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<|bos|>", "<|eos|>", *plain])
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * len(plain))
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(add_bos)


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself if printable in Latin-1, else the next code point from 256."""
    spare = itertools.count(256)
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _merges() -> Iterator[tuple[str, str]]:
    """Endless distinct merges: every pair of a space or letter with a letter, then each of those with a letter ..."""
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    stems = ["Ġ", *letters]
    while True:
        pairs = [(stem, letter) for stem in stems for letter in letters]
        yield from pairs
        stems = [stem + letter for stem, letter in pairs]
