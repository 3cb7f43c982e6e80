"""What tokenizers of every kind know: the text and kind of each token, and which of them begin and end a text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from phaseline.errors import FileFormatError
from phaseline.files.gguf import get

TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
# Texts that end a turn in the chat formats in use; a file often names only one of its own as EOS.
_END_OF_TURN = frozenset(
    [
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<end_of_turn>", "<end_of_utterance>", "<EOT>"),
    ]
)


class Kind(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """`texts` by id, no two alike; `kinds` of the tokens that are not normal; `other_ends` than EOS.

    `add_bos` and `add_eos`: whether a text is to begin and end so; then the id is there.
    """

    texts: Sequence[str]
    kinds: Mapping[int, Kind]
    bos_id: int | None = None
    eos_id: int | None = None
    other_ends: frozenset[int] = frozenset()
    add_bos: bool = False
    add_eos: bool = False
    chat_template: str | None = None

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any], *, add_bos: bool) -> Self:
        """From GGUF metadata; `add_bos` for a file that does not say. FileFormatError names the malformed key."""
        texts = array(meta, TOKENS, str)
        if len(set(texts)) != len(texts):
            raise FileFormatError(f"{TOKENS} holds {Counter(texts).most_common(1)[0][0]!r} twice")
        other_ends = (_token_id(meta, name, len(texts)) for name in ("eot", "eom"))
        found = cls(
            texts,
            _kinds(meta, len(texts)),
            bos_id=_token_id(meta, "bos", len(texts)),
            eos_id=_token_id(meta, "eos", len(texts)),
            other_ends=frozenset(id for id in other_ends if id is not None),
            add_bos=get(meta, "tokenizer.ggml.add_bos_token", bool, add_bos),
            add_eos=get(meta, "tokenizer.ggml.add_eos_token", bool, False),
            chat_template=get(meta, "tokenizer.chat_template", str, "") or None,
        )
        for name, place, asked, id in found.frame():
            if asked and id is None:
                raise FileFormatError(f"tokenizer.ggml.{name}_token_id is missing, yet prompts are to {place} with it")
        return found

    def frame(self) -> Iterable[tuple[str, str, bool, int | None]]:
        """For BOS and EOS: its name, its place, whether it is to be added, its id."""
        return ("bos", "begin", self.add_bos, self.bos_id), ("eos", "end", self.add_eos, self.eos_id)

    def of_kind(self, *kinds: Kind) -> list[int]:
        """Ids of the tokens of these kinds, which are not NORMAL."""
        return [id for id, kind in self.kinds.items() if kind in kinds]

    def ends(self) -> frozenset[int]:
        """Every id that ends a generation."""
        marks = self.of_kind(Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED)
        known = (id for id in marks if self.texts[id] in _END_OF_TURN)
        return self.other_ends.union(known, () if self.eos_id is None else (self.eos_id,))


def array(meta: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    """The elements of an array that must be there and hold nothing but `kind`."""
    value = get(meta, key, object)
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [None]
    if not set(map(type, items)) <= {kind}:
        raise FileFormatError(f"metadata key {key!r} must be an array of {kind.__name__}")
    return items


def _kinds(meta: Mapping[str, Any], count: int) -> Mapping[int, Kind]:
    """A file without them has normal tokens only."""
    if _TYPES not in meta:
        return {}
    kinds = array(meta, _TYPES, int)
    if len(kinds) != count:
        raise FileFormatError(f"{_TYPES} has {len(kinds)} entries for {count} tokens")
    if unknown := set(kinds).difference(Kind):
        raise FileFormatError(f"{_TYPES} holds {min(unknown)}; tokens have the types 1 to 6")
    return {id: Kind(kind) for id, kind in enumerate(kinds) if kind != Kind.NORMAL}


def _token_id(meta: Mapping[str, Any], name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in meta:
        return None
    if not 0 <= (id := get(meta, key, int)) < count:
        raise FileFormatError(f"{key} is {id}, outside the vocabulary of {count}")
    return id
