"""Byte-level BPE (`tokenizer.ggml.model` = "gpt2"): ranked merges of bytes, within words that a pattern cuts.

A byte that the vocabulary has no token for is left out of the ids, as the models' own tokenizers do: SmolLM2's lacks
six control characters and the unassigned planes of Unicode.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, filterfalse
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers.models import BPE

from phaseline.errors import FileFormatError
from phaseline.files.gguf import get
from phaseline.files.pretokenizers import splitting
from phaseline.files.tokenizer_codec import LibraryCodec, added
from phaseline.files.tokenizer_vocab import TOKENS, Kind, Vocabulary, array

_MERGES = "tokenizer.ggml.merges"


def bpe_from_metadata(meta: Mapping[str, Any]) -> tuple[Vocabulary, LibraryCodec]:
    """From GGUF metadata. FileFormatError names the key that is missing or malformed, UnsupportedError the
    pre-tokenizer that this version does not know.
    """
    split = splitting(get(meta, "tokenizer.ggml.pre", str))
    vocabulary = Vocabulary.from_metadata(meta, add_bos=split.add_bos)
    if vocabulary.of_kind(Kind.BYTE):
        raise FileFormatError("tokenizer.ggml.token_type holds 6 (byte); a byte-level vocabulary has the types 1 to 5")
    ids = {text: id for id, text in enumerate(vocabulary.texts)}
    model = BPE(vocab=ids, merges=_merges(meta, ids), ignore_merges=split.whole_words)

    def library(found: Iterable[int]) -> tokenizers.Tokenizer:
        """Over the shared model: the tokens `found` in the text come first."""
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = split.build()
        library.add_tokens(added(vocabulary.texts[id] for id in found))
        return library

    user_defined = vocabulary.of_kind(Kind.USER_DEFINED)
    plain = library(user_defined)
    marked = library(vocabulary.of_kind(Kind.UNKNOWN, Kind.CONTROL) + user_defined)
    return vocabulary, LibraryCodec(marked, lambda: plain, spell_byte_level)


def spell_byte_level(text: str, kind: Kind) -> bytes:
    """A normal token is spelt in GPT-2's alphabet of bytes, every other in plain UTF-8."""
    if kind is Kind.NORMAL:
        try:
            return text.translate(_BYTE_OF).encode("latin-1")
        except UnicodeEncodeError:  # not all of it is of that alphabet
            pass
    return text.encode()


def _stand_ins() -> dict[int, int]:
    """GPT-2's alphabet for `str.translate`: a byte that prints in Latin-1 is its own character, the others follow from
    U+0100 on. Their own characters stand for nothing, and become one that Latin-1 lacks.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    return dict.fromkeys(others, 0x100) | {0x100 + i: byte for i, byte in enumerate(others)}


_BYTE_OF: Mapping[int, int] = MappingProxyType(_stand_ins())


def _merges(meta: Mapping[str, Any], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs to merge, best first. Both halves and what they make must be tokens."""
    merges = array(meta, _MERGES, str)
    if wrong := [merge for merge in merges if merge.count(" ") != 1]:
        raise FileFormatError(f"{_MERGES} holds {wrong[0]!r}; it takes two tokens with one space between")
    if len(set(merges)) != len(merges):
        raise FileFormatError(f"{_MERGES} holds {Counter(merges).most_common(1)[0][0]!r} twice")
    halves = " ".join(merges).split(" ") if merges else []
    pairs = list(zip(halves[::2], halves[1::2], strict=True))
    needed = chain(halves, map("".join, pairs))
    if (unknown := next(filterfalse(ids.__contains__, needed), None)) is not None:
        raise FileFormatError(f"{_MERGES} needs the token {unknown!r}, which {TOKENS} lacks")
    return pairs
