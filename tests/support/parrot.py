"""A model that says one thing: after any prompt its pieces one by one, then the end."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import TokenType

from support.tiny import EOS, SMALLEST_VOCAB, TinyWriter

CERTAIN = 20.0  # logit of the token that comes next; all others have 0


def write_parrot(
    path: Path,
    pieces: Sequence[str],
    *,
    control: Sequence[str] = (),
    template: str,
    context: int = 1024,
    endless: bool = False,
) -> Path:
    """Write a GGUF whose answers are `pieces`, a token each and all different, some of them `control` tokens.

    An `endless` one begins anew after the last piece.
    """
    first = SMALLEST_VOCAB + 1  # a vocabulary without a merge is refused
    vocab = first + len(pieces)
    width = -(-vocab // 32) * 32
    w = TinyWriter(path, "llama", vocab=first)
    w.add_tokens(pieces, [TokenType.CONTROL if piece in control else TokenType.USER_DEFINED for piece in pieces])
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=1,
        feed_forward_length=32,
        attention__head_count=width // 32,
        attention__head_count_kv=1,
        attention__key_length=32,
        attention__value_length=32,
        rope__dimension_count=32,
        rope__freq_base=10000.0,
        attention__layer_norm_rms_epsilon=1e-5,
        vocab_size=vocab,
    )
    w.metadata({"tokenizer.chat_template": template})
    one_hot = np.eye(vocab, width)
    w.values("token_embd.weight", one_hot)
    for name, rows, columns in (
        ("attn_q", width, width),
        ("attn_k", 32, width),
        ("attn_v", 32, width),
        ("attn_output", width, width),
        ("ffn_gate", 32, width),
        ("ffn_up", 32, width),
        ("ffn_down", width, 32),
    ):
        w.values(f"blk.0.{name}.weight", np.zeros((rows, columns)))  # nothing is added to what a token says itself
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        w.values(f"{name}.weight", np.ones(width))
    follower = [first] * first + [*range(first + 1, vocab), first if endless else EOS]
    output = np.zeros((vocab, width))
    output[follower, range(vocab)] = CERTAIN * width**-0.5  # a one-hot vector's root mean square is width**-0.5
    w.values("output.weight", output)
    return w.close()
