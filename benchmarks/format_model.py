"""A llama of random weights in any one format: as large as asked, made in seconds, for timing alone."""

import itertools
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from numpy.typing import NDArray

from phaseline.files.quant import Format

WIDTH, FF, HEADS, KV_HEADS, VOCAB, CONTEXT = 1024, 3072, 16, 8, 2048, 2048
DRAWN = 1 << 15  # blocks among which those of sane size are looked for


def write(path: Path, format: Format, layers: int) -> dict[str, NDArray[np.uint8]]:
    """Write the model and return its matrices, (rows, row bytes), but for the embedding. All layers share theirs."""
    rng, kv = np.random.default_rng(format.id), KV_HEADS * WIDTH // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (kv, WIDTH), "attn_v": (kv, WIDTH), "attn_output": (WIDTH, WIDTH)}
    shapes |= {"ffn_gate": (FF, WIDTH), "ffn_up": (FF, WIDTH), "ffn_down": (WIDTH, FF)}
    blocks = sane_blocks(rng, format)
    of_layer = {name: random_matrix(rng, format, blocks, *shape) for name, shape in shapes.items()}
    head = random_matrix(rng, format, blocks, VOCAB, WIDTH)
    out = GGUFWriter(path, "llama")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(layers)
    out.add_feed_forward_length(FF)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_vocab_size(VOCAB)
    vocabulary(out, VOCAB)
    matrices = {f"blk.{n}.{name}": raw for n in range(layers) for name, raw in of_layer.items()} | {"output": head}
    for name, raw in {**matrices, "token_embd": head}.items():
        plain = {"F32": np.float32, "F16": np.float16}.get(format.name)
        values = raw.view(plain) if plain else raw
        out.add_tensor(f"{name}.weight", values, raw_dtype=GGMLQuantizationType[format.name])
    for name in [f"blk.{n}.{norm}_norm" for n in range(layers) for norm in ("attn", "ffn")] + ["output_norm"]:
        out.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return matrices


def sane_blocks(rng: np.random.Generator, format: Format) -> NDArray[np.uint8]:
    """Blocks of random bytes, but only such as hold numbers of about a weight's size: (blocks, bytes)."""
    drawn = rng.integers(0, 256, (DRAWN, format.bytes), dtype=np.uint8)
    size = np.abs(format.decode_rows(drawn)).max(axis=1)
    return drawn[(size > WIDTH**-0.5) & (size < 8 * WIDTH**-0.5)]


def random_matrix(
    rng: np.random.Generator, format: Format, blocks: NDArray[np.uint8], rows: int, cols: int
) -> NDArray[np.uint8]:
    """(rows, row bytes)."""
    return blocks[rng.integers(0, len(blocks), (rows, cols // format.block))].reshape(rows, -1)


def vocabulary(out: GGUFWriter, count: int) -> None:
    """The bytes, one merge of them, and numbers up to so many tokens: prompts are ids."""
    spare, printable = itertools.count(256), {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    tokens = [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)] + ["ab"]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens + [f"<{n}>" for n in range(len(tokens), count)])
    out.add_token_types([TokenType.NORMAL] * count)
    out.add_token_merges(["a b"])
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)
