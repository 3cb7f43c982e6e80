"""Text of a growing sequence of tokens, given out as early as it is certain."""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from phaseline.errors import RequestError
from phaseline.files.tokenizer import Tokenizer


class TokenBytes(Protocol):
    """The one thing a stream needs of a tokenizer."""

    def token_bytes(self, id: int) -> bytes: ...


class SpeltTokens:
    """A tokenizer's bytes with the control tokens of some `ids` spelt out."""

    def __init__(self, tokenizer: Tokenizer, ids: Iterable[int]) -> None:
        self._tokenizer, self._ids = tokenizer, frozenset(ids)

    def token_bytes(self, id: int) -> bytes:
        return self._tokenizer.token_bytes(id, skip_special=id not in self._ids)


class TextStream:
    """Turns tokens into text, holding back half a character and whatever could still become a stop string.

    All that `push` and `finish` return, joined, is the decoded text of all tokens (bytes that are not UTF-8 as
    U+FFFD), cut where the first stop string begins. "First" is by place: a stop string that began earlier wins over
    a shorter one that was complete sooner, however the text is cut into tokens.
    """

    def __init__(self, tokenizer: TokenBytes, stop: Sequence[str] = ()) -> None:
        """RequestError for an empty stop string."""
        if not all(stop):
            raise RequestError("a stop string must not be empty")
        self.stopped = False  # a stop string matched: what is before it was given out, nothing more will be
        self._tokenizer, self._stop, self._longest = tokenizer, tuple(stop), max(map(len, stop), default=0)
        self._bytes = b""  # of half a character
        self._pending = ""  # decoded and held back: a proper prefix of some stop string

    def watch(self, stop: Sequence[str]) -> None:
        """Look for these stop strings from here on; text given out before is not looked at again."""
        self._stop, self._longest = tuple(stop), max(map(len, stop), default=0)

    def push(self, token_id: int) -> str:
        """The text that is certain once `token_id` has come; "" after a stop."""
        return self._advance(self._tokenizer.token_bytes(token_id), last=False)

    def finish(self) -> str:
        """The rest of the text, now that no token follows."""
        return self._advance(b"", last=True)

    def _advance(self, data: bytes, *, last: bool) -> str:
        data = self._bytes + data
        text, read = codecs.utf_8_decode(data, "replace", last)
        self._bytes = data[read:]
        if not self._stop:
            return text
        if self.stopped:
            return ""
        text = self._pending + text
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        certain = len(text) if last else self._certain(text)
        if found and min(found) <= certain:
            self.stopped, certain = True, min(found)
        self._pending = text[certain:]
        return text[:certain]

    def _certain(self, text: str) -> int:
        """Where the longest suffix that begins a stop string starts; the text's length if there is none."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stop):
                return start
        return len(text)
