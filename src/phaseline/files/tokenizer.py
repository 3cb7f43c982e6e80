"""Text to token ids and back, from the vocabulary and merges in a file's metadata.

Byte-level BPE (`tokenizer.ggml.model` = "gpt2"). A byte that the vocabulary has no token for is left out of the ids,
as the models' own tokenizers do: SmolLM2's lacks six control characters and the unassigned planes of Unicode.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, filterfalse
from types import MappingProxyType
from typing import Any, Self

import tokenizers
from tokenizers import AddedToken
from tokenizers.models import BPE

from phaseline.errors import FileFormatError, RequestError, UnsupportedError
from phaseline.files.gguf import get
from phaseline.files.pretokenizers import Splitting, splitting

_TOKENS, _TYPES, _MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = _KINDS = range(1, 6)  # values of tokenizer.ggml.token_type
# Texts that end a turn in the chat formats in use; a file often names only one of its own as EOS.
_END_OF_TURN = frozenset(
    [
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<end_of_turn>", "<end_of_utterance>", "<EOT>"),
    ]
)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: a byte that prints in Latin-1 is its own character, the others follow from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF: Mapping[str, int] = MappingProxyType(_byte_alphabet())


class Tokenizer:
    """A file's vocabulary. Attributes: `vocab_size`; `bos_id` and `eos_id`, None where the file names none; `eos_ids`,
    every id that ends a generation; `chat_template`, None if the file has none. Nothing changes once it is built.
    """

    def __init__(
        self,
        vocab: dict[str, int],
        kinds: Sequence[int],
        merges: list[tuple[str, str]],
        split: Splitting,
        *,
        add_bos: bool,
        bos_id: int | None,
        eos_id: int | None,
        other_ends: Iterable[int],
        chat_template: str | None,
    ) -> None:
        """`vocab`: text to id, in order of id; `kinds`: the token type of each id. `from_metadata` checks all this."""
        self._texts = list(vocab)
        self._kinds = {id: kind for id, kind in enumerate(kinds) if kind != _NORMAL}
        self._add_bos = add_bos
        self.vocab_size, self.bos_id, self.eos_id, self.chat_template = len(vocab), bos_id, eos_id, chat_template
        user_defined = [id for id, kind in self._kinds.items() if kind == _USER_DEFINED]
        control = [id for id, kind in self._kinds.items() if kind in (_UNKNOWN, _CONTROL)]
        known_ends = (id for id in control + user_defined if self._texts[id] in _END_OF_TURN)
        self.eos_ids = frozenset(other_ends).union(known_ends, () if eos_id is None else (eos_id,))
        model = BPE(vocab=vocab, merges=merges, ignore_merges=split.whole_words)
        self._plain = self._with_added(model, split, user_defined)
        self._marked = self._with_added(model, split, control + user_defined)

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any]) -> Self:
        """Build from GGUF metadata. FileFormatError names the key that is missing or malformed, UnsupportedError
        the tokenizer model or pre-tokenizer that this version does not know.
        """
        if (model := get(meta, "tokenizer.ggml.model", str)) != "gpt2":
            raise UnsupportedError(
                f"tokenizer model {model!r} (tokenizer.ggml.model) is not supported; supported: 'gpt2' (byte-level BPE)"
            )
        split = splitting(get(meta, "tokenizer.ggml.pre", str))
        vocab = _vocab(meta)
        bos_id = _token_id(meta, "bos", vocab)
        add_bos = get(meta, "tokenizer.ggml.add_bos_token", bool, split.add_bos)
        if add_bos and bos_id is None:
            raise FileFormatError("tokenizer.ggml.bos_token_id is missing, yet prompts are to begin with BOS")
        other_ends = (_token_id(meta, name, vocab) for name in ("eot", "eom"))
        return cls(
            vocab,
            _token_kinds(meta, vocab),
            _merges(meta, vocab),
            split,
            add_bos=add_bos,
            bos_id=bos_id,
            eos_id=_token_id(meta, "eos", vocab),
            other_ends=[id for id in other_ends if id is not None],
            chat_template=get(meta, "tokenizer.chat_template", str, "") or None,
        )

    def encode(self, text: str, *, bos: bool = True, special: bool = True) -> list[int]:
        """Ids of `text`; RequestError if it is not valid Unicode.

        `bos`: begin with BOS if the file asks for that and the text does not already.
        `special`: control tokens spelt out in the text become those tokens; otherwise they are text like any other.
        """
        library = self._marked if special else self._plain
        try:
            ids: list[int] = library.encode(text, add_special_tokens=False).ids
        except TypeError:  # the one thing it can't take in a str
            raise RequestError("the text is not valid Unicode: it holds half of a surrogate pair") from None
        if bos and self._add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`, bytes that are not UTF-8 as U+FFFD; `skip_special=False` spells control tokens out."""
        return b"".join(self.token_bytes(id, skip_special=skip_special) for id in ids).decode(errors="replace")

    def token_bytes(self, id: int, *, skip_special: bool = True) -> bytes:
        """What one token adds to the text, perhaps part of a character; b"" for control and unused tokens if skipped.

        RequestError for an id outside the vocabulary.
        """
        text = self.token_text(id)
        kind = self._kinds.get(id, _NORMAL)
        if skip_special and kind not in (_NORMAL, _USER_DEFINED):
            return b""
        if kind != _NORMAL or not _BYTE_OF.keys() >= set(text):  # spelt in plain UTF-8
            return text.encode()
        return bytes(_BYTE_OF[character] for character in text)

    def token_text(self, id: int) -> str:
        """The vocabulary's own spelling of a token; RequestError for an id outside the vocabulary."""
        if not 0 <= id < self.vocab_size:
            raise RequestError(f"token id {id} is outside the vocabulary of {self.vocab_size}")
        return self._texts[id]

    def _with_added(self, model: BPE, split: Splitting, added: Iterable[int]) -> tokenizers.Tokenizer:
        """The library's tokenizer over the shared `model` that finds the `added` tokens in the text first."""
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = split.build()
        library.add_tokens([AddedToken(self._texts[id], normalized=False) for id in added])
        return library


def _vocab(meta: Mapping[str, Any]) -> dict[str, int]:
    texts = _array(meta, _TOKENS, str)
    vocab = {text: id for id, text in enumerate(texts)}
    if len(vocab) != len(texts):
        twice = next(text for id, text in enumerate(texts) if vocab[text] != id)
        raise FileFormatError(f"{_TOKENS} holds {twice!r} twice")
    return vocab


def _token_kinds(meta: Mapping[str, Any], vocab: Mapping[str, int]) -> Sequence[int]:
    """The type of each token; a file without them has normal tokens only."""
    if _TYPES not in meta:
        return [_NORMAL] * len(vocab)
    kinds = _array(meta, _TYPES, int)
    if len(kinds) != len(vocab):
        raise FileFormatError(f"{_TYPES} has {len(kinds)} entries for {len(vocab)} tokens")
    if unknown := set(kinds).difference(_KINDS):
        raise FileFormatError(f"{_TYPES} holds {min(unknown)}; a byte-level vocabulary has the types 1 to 5")
    return kinds


def _merges(meta: Mapping[str, Any], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs to merge, best first. Both halves and what they make must be tokens."""
    merges = _array(meta, _MERGES, str)
    if wrong := [merge for merge in merges if merge.count(" ") != 1]:
        raise FileFormatError(f"{_MERGES} holds {wrong[0]!r}; it takes two tokens with one space between")
    if len(set(merges)) != len(merges):
        raise FileFormatError(f"{_MERGES} holds {Counter(merges).most_common(1)[0][0]!r} twice")
    halves = " ".join(merges).split(" ") if merges else []
    pairs = list(zip(halves[::2], halves[1::2], strict=True))
    needed = chain(halves, map("".join, pairs))
    if (unknown := next(filterfalse(vocab.__contains__, needed), None)) is not None:
        raise FileFormatError(f"{_MERGES} needs the token {unknown!r}, which {_TOKENS} lacks")
    return pairs


def _token_id(meta: Mapping[str, Any], name: str, vocab: Mapping[str, int]) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in meta:
        return None
    if not 0 <= (id := get(meta, key, int)) < len(vocab):
        raise FileFormatError(f"{key} is {id}, outside the vocabulary of {len(vocab)}")
    return id


def _array(meta: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """The elements of an array that must be there and hold nothing but `kind`."""
    value = get(meta, key, object)
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [None]
    if not set(map(type, items)) <= {kind}:
        raise FileFormatError(f"metadata key {key!r} must be an array of {kind.__name__}")
    return items
