"""SentencePiece's BPE (`tokenizer.ggml.model` = "llama"): the best-scored pair of neighbours merges first.

A space is written "▁", one is put before the text, and what no token spells becomes tokens of its UTF-8 bytes. The
scores rank what a merge makes, not its two halves, so no list of merges, as the `tokenizers` library wants it, gives
the same: of "aa|a" and "a|aa" the left one must win.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise
from typing import Any

import tokenizers
from tokenizers.models import WordLevel

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.gguf import get
from phaseline.files.tokenizer_codec import added, library_encode
from phaseline.files.tokenizer_vocab import Kind, Vocabulary, array

_SPACE = "▁"  # what stands for a space in a vocabulary
_SCORES, _TYPES, _CHARSMAP = (f"tokenizer.ggml.{key}" for key in ("scores", "token_type", "precompiled_charsmap"))
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_KEPT, _LONGEST_KEPT = 1 << 15, 64  # words whose ids are remembered, and their longest (characters)


def spm_from_metadata(meta: Mapping[str, Any]) -> tuple[Vocabulary, "SpmCodec"]:
    """From GGUF metadata. FileFormatError names the key that is missing or malformed."""
    get(meta, _TYPES, object)  # without them no byte token could be told from its spelling
    if _CHARSMAP in meta:
        raise UnsupportedError(f"{_CHARSMAP} is not supported: text is taken as it is")
    vocabulary = Vocabulary.from_metadata(meta, add_bos=True)
    scores = array(meta, _SCORES, float)
    if len(scores) != len(vocabulary.texts):
        raise FileFormatError(f"{_SCORES} has {len(scores)} entries for {len(vocabulary.texts)} tokens")
    if (wrong := next((id for id, score in enumerate(scores) if math.isnan(score)), None)) is not None:
        raise FileFormatError(f"{_SCORES} has no number for token {wrong}")
    return vocabulary, SpmCodec(
        vocabulary,
        scores,
        space_prefix=get(meta, "tokenizer.ggml.add_space_prefix", bool, True),
        squeeze=get(meta, "tokenizer.ggml.remove_extra_whitespaces", bool, False),
    )


class SpmCodec:
    """Only normal and user-defined tokens are made of text: one that spells a control or byte token stays text."""

    def __init__(self, vocabulary: Vocabulary, scores: list[float], *, space_prefix: bool, squeeze: bool) -> None:
        """`scores` of each id; `squeeze`: runs of spaces count as one, and none at the ends of a text."""
        self.space_prefix, self._squeeze = space_prefix, squeeze
        texts, kinds = vocabulary.texts, vocabulary.kinds
        made = [id for id in range(len(texts)) if kinds.get(id, Kind.NORMAL) in (Kind.NORMAL, Kind.USER_DEFINED)]
        places = {score: place for place, score in enumerate(sorted({scores[id] for id in made}, reverse=True))}
        self._ids = {texts[id]: id for id in made}
        self._ranks = {texts[id]: places[scores[id]] for id in made}
        self._spanned = {pair for text in self._ids for pair in pairwise(text)}
        self._bytes = _byte_ids(vocabulary)
        self._unknown = vocabulary.of_kind(Kind.UNKNOWN)[:1]
        self._remembered = lru_cache(_KEPT)(self._word)
        user_defined = [texts[id] for id in vocabulary.of_kind(Kind.USER_DEFINED)]
        control = [texts[id] for id in vocabulary.of_kind(Kind.UNKNOWN, Kind.CONTROL)]
        self._marks = {text: id for id in kinds if (text := texts[id])}
        self._cutters = {False: _cutter(user_defined), True: _cutter(control + user_defined)}

    def encode(self, text: str, special: bool) -> list[int]:
        """A space is put before each stretch of text that begins the whole or follows a token found in it."""
        found: list[int] = []
        for piece, is_mark in _cut(self._cutters[special], self.spelt(text)):
            found += [self._marks[piece]] if is_mark else self._fused(self._stretch(piece))
        return found

    def spelt(self, text: str) -> str:
        return " ".join(filter(None, text.split(" "))) if self._squeeze else text

    def spell(self, text: str, kind: Kind) -> bytes:
        return spell_spaced(text, kind)

    def _stretch(self, text: str) -> Iterator[int]:
        """Ids of a stretch of text, cut where no token spans two characters: nothing can merge across."""
        text = (" " * self.space_prefix + text).replace(" ", _SPACE)
        start = 0
        for end, pair in enumerate(pairwise(text), 1):
            if pair not in self._spanned:
                yield from self._known(text[start:end])
                start = end
        yield from self._known(text[start:])

    def _fused(self, ids: Iterable[int]) -> Iterator[int]:
        """One unknown token for a run of them."""
        for id, run in groupby(ids):
            yield from (id,) if [id] == self._unknown else run

    def _known(self, word: str) -> list[int]:
        return self._remembered(word) if len(word) <= _LONGEST_KEPT else self._word(word)

    def _word(self, word: str) -> list[int]:
        found: list[int] = []
        for symbol in _merged(word, self._ranks):
            if (id := self._ids.get(symbol)) is not None:
                found.append(id)
            elif self._bytes:
                found += [self._bytes[byte] for byte in symbol.encode()]
            else:
                found += self._unknown
        return found


def spell_spaced(text: str, kind: Kind) -> bytes:
    """A normal or user-defined token has "▁" for a space, a byte token is that byte, every other as it is written."""
    if kind is Kind.BYTE:
        return bytes.fromhex(text[3:5])
    return (text.replace(_SPACE, " ") if kind in (Kind.NORMAL, Kind.USER_DEFINED) else text).encode()


def _merged(word: str, ranks: Mapping[str, int]) -> Iterator[str]:
    """The symbols that are left of `word`, character by character at first, once no two neighbours make one in `ranks`.

    The pair of lowest rank merges first, of equals the left one. About n log n steps for n characters.
    """
    count, never = len(word), len(ranks)
    after, before = list(range(1, count + 1)), list(range(-1, count))  # a symbol spans word[start : after[start]]
    best = [ranks.get(word[start : start + 2], never) for start in range(count - 1)]  # with the symbol to the right
    best.append(never)
    heap = [rank * count + start for start, rank in enumerate(best) if rank < never]
    heapify(heap)
    while heap:
        rank, start = divmod(heappop(heap), count)
        if best[start] != rank:  # merged since
            continue
        best[after[start]] = never
        after[start] = end = after[after[start]]
        before[end] = start
        for left in (before[start], start):
            if left < 0:
                continue
            right = after[left]
            best[left] = found = never if right == count else ranks.get(word[left : after[right]], never)
            if found < never:
                heappush(heap, found * count + left)
    start = 0
    while start < count:
        yield word[start : after[start]]
        start = after[start]


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """The token of each byte; none if the vocabulary has no byte tokens."""
    found: dict[int, int] = {}
    for id in vocabulary.of_kind(Kind.BYTE):
        if (match := _BYTE.fullmatch(vocabulary.texts[id])) is None:
            raise FileFormatError(f"{_TYPES} says byte of token {id}, {vocabulary.texts[id]!r}: no byte is spelt so")
        found[int(match[1], 16)] = id
    if found and len(found) < 256:
        raise FileFormatError(f"{_TYPES} marks {len(found)} byte tokens; it takes all 256 or none")
    return [found[byte] for byte in sorted(found)]


def _cutter(marks: Iterable[str]) -> tokenizers.Tokenizer:
    """The library, so set up that it does no more than find `marks` in a text: all between them is token 0."""
    library = tokenizers.Tokenizer(WordLevel({"": 0}, unk_token=""))
    library.add_tokens(added(marks))
    return library


def _cut(cutter: tokenizers.Tokenizer, text: str) -> Iterator[tuple[str, bool]]:
    """The marks of `text` and the stretches between them, in order, with whether each is a mark."""
    encoding = library_encode(cutter.encode_batch, text)
    for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        yield text[start:end], id != 0
