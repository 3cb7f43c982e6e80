"""Tiny random models on disk, complete enough for Phaseline and for llama.cpp."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType
from numpy.typing import NDArray

BOS, EOS = 0, 1  # ids of <|bos|> and <|eos|>; the 256 byte tokens follow, then one token per merge
SMALLEST_VOCAB = 258
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

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


class TinyWriter:
    """A GGUF file in the making: settings of one architecture, a tokenizer, and random tensors."""

    def __init__(
        self,
        path: Path,
        arch: str,
        *,
        vocab: int,
        format: str = "F32",
        formats: Mapping[str, str] | None = None,
        seed: int = 0,
        add_bos: bool = False,
        part_tensors: int = 0,
    ) -> None:
        """`format` is that of all matrices; `formats` overrides it for tensors whose name contains a key.

        `part_tensors` splits the model over files of so many tensors, beside `path`, which then stays unwritten.
        """
        self._path, self._arch, self._format, self._formats = path, arch, format, formats or {}
        self._rng = np.random.default_rng(seed)
        self._writer = GGUFWriter(path, arch, split_max_tensors=part_tensors)
        add_tokenizer(self._writer, vocab, add_bos)

    def keys(self, **values: Any) -> None:
        """Settings below the architecture's name; `__` stands for a dot."""
        self.metadata({f"{self._arch}.{name.replace('__', '.')}": value for name, value in values.items()})

    def metadata(self, values: Mapping[str, Any]) -> None:
        """Any keys; a later value replaces an earlier one."""
        for key, value in values.items():
            count = type(value) is int and value >= 0
            self._writer.add_key_value(key, value, GGUFValueType.UINT32 if count else GGUFValueType.get_type(value))

    def add_tokens(self, texts: Sequence[str], kinds: Sequence[TokenType]) -> None:
        """Further tokens, as they are spelt."""
        known = self._writer.kv_data[0]
        for key, more in (("tokenizer.ggml.tokens", texts), ("tokenizer.ggml.token_type", map(int, kinds))):
            known[key].value += list(more)

    def matrix(self, name: str, rows: int, cols: int, std: float | None = None) -> None:
        """`name`.weight of that standard deviation, such that outputs are of the inputs' size where not stated."""
        chosen = self._chosen(name)
        values = encode(self._rng, chosen, rows, cols, cols**-0.5 if std is None else std)
        self._writer.add_tensor(name + ".weight", values, raw_dtype=GGMLQuantizationType[chosen])

    def stack(self, name: str, count: int, rows: int, cols: int, std: float | None = None) -> None:
        """`name`.weight as that many matrices, one below the other."""
        chosen = self._chosen(name)
        values = encode(self._rng, chosen, count * rows, cols, cols**-0.5 if std is None else std)
        raw = values.reshape(count, rows, -1)
        self._writer.add_tensor(name + ".weight", raw, raw_dtype=GGMLQuantizationType[chosen])

    def _chosen(self, name: str) -> str:
        return next((f for part, f in self._formats.items() if part in name + ".weight"), self._format)

    def vector(self, name: str, width: int, mean: float = 0.0, std: float = 0.1) -> None:
        """The float32 tensor `name`."""
        self._writer.add_tensor(name, self._rng.normal(mean, std, width).astype(np.float32))

    def values(self, name: str, values: NDArray[Any]) -> None:
        """The float32 tensor `name` as it is."""
        self._writer.add_tensor(name, values.astype(np.float32))

    def close(self) -> Path:
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()
        return self._path


def write_llama(path: Path, *, rope_theta: float = 10000.0, **options: Any) -> Path:
    """Write a random llama-architecture GGUF and return its path; for the options see `write_decoder`."""
    return write_decoder(path, "llama", rope_theta=rope_theta, **options)


def write_decoder(
    path: Path,
    arch: str,
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
    qkv_biases: bool = False,
    head_norms: bool = False,
    post_norms: bool = False,
    rope_factors: NDArray[Any] | None = None,
    embedding_std: float = 1.0,
    extra: Mapping[str, Any] | None = None,
    part_tensors: int = 0,
) -> Path:
    """Write a random GGUF of an architecture built like llama's, and return its path.

    A format of blocks needs rows (width, ff, heads * head_dim) of whole blocks: 32, or 256 for the K formats.
    `extra` adds metadata keys or replaces those written here.
    """
    size = head_dim or width // heads
    w = TinyWriter(
        path, arch, vocab=vocab, format=format, formats=formats, seed=seed, add_bos=add_bos, part_tensors=part_tensors
    )
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=layers,
        feed_forward_length=ff,
        attention__head_count=heads,
        attention__head_count_kv=kv_heads,
        attention__key_length=size,
        attention__value_length=size,
        rope__dimension_count=size,
        rope__freq_base=float(rope_theta),
        attention__layer_norm_rms_epsilon=1e-5,
        vocab_size=vocab,
    )
    w.metadata(extra or {})
    w.matrix("token_embd", vocab, width, embedding_std)
    if rope_factors is not None:
        w.values("rope_freqs.weight", rope_factors)
    for n in range(layers):
        p = f"blk.{n}."
        w.vector(p + "attn_norm.weight", width, 1.0)
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            w.matrix(p + f"attn_{part}", count * size, width)
            if qkv_biases:
                w.vector(p + f"attn_{part}.bias", count * size, std=0.5)
            if head_norms and part != "v":
                w.vector(p + f"attn_{part}_norm.weight", size, 1.5, 0.5)
        # Twice the usual: attention averages its values, and what it reads must matter to the answer.
        w.matrix(p + "attn_output", width, heads * size, 2 * (heads * size) ** -0.5)
        if post_norms:
            w.vector(p + "post_attention_norm.weight", width, 1.0, 0.3)
        w.vector(p + "ffn_norm.weight", width, 1.0)
        w.matrix(p + "ffn_gate", ff, width)
        w.matrix(p + "ffn_up", ff, width)
        w.matrix(p + "ffn_down", width, ff)
        if post_norms:
            w.vector(p + "post_ffw_norm.weight", width, 1.0, 0.3)
    if tied:  # weights of random sign, or every token would predict itself
        w.vector("output_norm.weight", width, 0.0, 2 * width**-0.5 / embedding_std)
    else:
        w.vector("output_norm.weight", width, 1.0)
        w.matrix("output", vocab, width, 2 * width**-0.5)
    return w.close()


def write_gpt2(
    path: Path,
    *,
    format: str = "F32",
    layers: int = 3,
    width: int = 64,
    heads: int = 4,
    vocab: int = 320,
    context: int = 160,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random gpt2-architecture GGUF, its head tied, and return its path."""
    w = TinyWriter(path, "gpt2", vocab=vocab, format=format, seed=seed)
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=layers,
        feed_forward_length=4 * width,
        attention__head_count=heads,
        attention__layer_norm_epsilon=1e-5,
    )
    w.metadata(extra or {})
    w.matrix("token_embd", vocab, width, 1.0)
    w.matrix("position_embd", context, width, 1.0)
    for n in range(layers):
        p = f"blk.{n}."
        for norm in ("attn_norm", "ffn_norm"):
            w.vector(p + norm + ".weight", width, 1.0)
            w.vector(p + norm + ".bias", width, std=0.3)
        sizes = {"attn_qkv": (3 * width, width), "attn_output": (width, width)}
        for part, (rows, cols) in (sizes | {"ffn_up": (4 * width, width), "ffn_down": (width, 4 * width)}).items():
            w.matrix(p + part, rows, cols, (2 if part == "attn_output" else 1) * cols**-0.5)
            w.vector(p + part + ".bias", rows, std=0.3)
    w.vector("output_norm.weight", width, 0.0, 2 * width**-0.5)
    w.vector("output_norm.bias", width, std=0.1)
    return w.close()


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


def add_tokenizer(writer: GGUFWriter, vocab: int, add_bos: bool) -> None:
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
