"""Prompts as callers hold them: text or token ids, one or several, in lists or numpy's arrays."""

import reprlib
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import RequestError
from phaseline.files.tokenizer import Tokenizer

_PIECE = 1 << 18  # characters
Prompt = str | Sequence[int] | NDArray[np.integer[Any]]


def is_one(prompt: Prompt | Sequence[Prompt]) -> TypeGuard[Prompt]:
    """Whether this is one prompt, not several; RequestError if it is neither."""
    if isinstance(prompt, str):
        return True
    _require_sequence(prompt)
    return len(prompt) == 0 or not (isinstance(prompt[0], str) or _is_sequence(prompt[0]))


def token_ids(prompt: Sequence[int] | NDArray[np.integer[Any]]) -> list[int]:
    """The ids as Python's own integers; what is none is left for `validate` to refuse."""
    _require_sequence(prompt)
    if not isinstance(prompt, np.ndarray) and set(map(type, prompt)) <= {int}:
        return list(prompt)
    return [int(token) if isinstance(token, np.integer) else token for token in prompt]


class Cover:
    """How few tokens may spell a text: none covers more bytes than the longest does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelt = tokenizer.spelt
        tokens = [tokenizer.token_bytes(id, skip_special=False) for id in range(tokenizer.vocab_size)]
        self._longest = max(map(len, tokens))
        known = {token[0] for token in tokens if len(token) == 1}
        self._left_out = bytes(byte for byte in range(256) if byte not in known)  # encoding drops them

    def fewest(self, text: str) -> int:
        """A lower bound on the number of tokens, in a small part of the time it takes to find them."""
        spelt = self._spelt(text if text.isascii() else text.encode(errors="replace").decode())
        pieces = (spelt[start : start + _PIECE] for start in range(0, len(spelt), _PIECE))  # others run between them
        return -(-sum(len(piece.encode().translate(None, self._left_out)) for piece in pieces) // self._longest)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _require_sequence(prompt: Any) -> None:
    if isinstance(prompt, str | bytes | bytearray | memoryview) or not _is_sequence(prompt):
        raise RequestError(
            f"prompt = {reprlib.repr(prompt)}: must be text, a list or array of token ids, or a list of such prompts"
        )
