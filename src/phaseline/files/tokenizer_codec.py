"""What a kind of tokenizer must do, and what the `tokenizers` library does for all of them."""

from collections.abc import Callable, Iterable
from typing import Protocol

import tokenizers

from phaseline.errors import RequestError
from phaseline.files.tokenizer_vocab import Kind


class Codec(Protocol):
    """How one kind of tokenizer cuts text and spells tokens.

    `space_prefix`: whether encoding puts a space before a text, which decoding has to take off again.
    """

    space_prefix: bool

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of `text`; `special`: control tokens spelt out in it become those tokens."""

    def spelt(self, text: str) -> str:
        """What of `text` the tokens spell, none twice and none left out but bytes that no token spells; "" if that
        can't be told before they are found.
        """

    def spell(self, text: str, kind: Kind) -> bytes:
        """The bytes that a token adds to the text, from its spelling in the vocabulary."""


class LibraryCodec:
    """A codec whose text the library cuts: `marked` finds control tokens in it, what `plain` gives does not."""

    def __init__(
        self,
        marked: tokenizers.Tokenizer,
        plain: Callable[[], tokenizers.Tokenizer],
        spell: Callable[[str, Kind], bytes],
        *,
        space_prefix: bool = False,
        spelt: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._marked, self._plain, self.spell, self.space_prefix = marked, plain, spell, space_prefix
        self._spelt = spelt

    def encode(self, text: str, special: bool) -> list[int]:
        library = self._marked if special else self._plain()
        return library_encode(library.encode_batch_fast, text).ids

    def spelt(self, text: str) -> str:
        return self._spelt(text)


def library_encode(encode_batch: Callable[..., list[tokenizers.Encoding]], text: str) -> tokenizers.Encoding:
    """By one of the library's ways to encode several texts: that for a single one would keep all other threads waiting.

    RequestError if `text` is not valid Unicode, or a pattern of the tokenizer gives up on it.
    """
    try:
        return encode_batch([text], add_special_tokens=False)[0]
    except TypeError:  # the one thing it can't take in a str
        raise RequestError("the text is not valid Unicode: it holds half of a surrogate pair") from None
    except BaseException as error:
        if not is_panic(error):
            raise
        raise RequestError(f"the text has a run too long for the tokenizer's pattern: {error}") from None


def is_panic(error: BaseException) -> bool:
    """Whether the library broke down. The class of these errors can't be imported."""
    return type(error).__name__ == "PanicException"


def added(texts: Iterable[str]) -> list[tokenizers.AddedToken]:
    """Tokens that the library finds in a text before anything else: the first, of those the longest."""
    return [tokenizers.AddedToken(text, normalized=False) for text in texts if text]
