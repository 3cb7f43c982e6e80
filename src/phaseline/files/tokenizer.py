"""Text to token ids and back, whatever the vocabulary's kind and wherever it was found."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from phaseline.errors import RequestError, UnsupportedError
from phaseline.files.gguf import get
from phaseline.files.tokenizer_bpe import bpe_from_metadata
from phaseline.files.tokenizer_codec import Codec
from phaseline.files.tokenizer_folder import codec_from_folder
from phaseline.files.tokenizer_spm import spm_from_metadata
from phaseline.files.tokenizer_vocab import Kind, Vocabulary

_SPELT_OUT = frozenset([Kind.NORMAL, Kind.USER_DEFINED, Kind.BYTE])  # kinds that are part of the text


class Tokenizer:
    """A model's vocabulary. Attributes: `vocab_size`; `bos_id` and `eos_id`, None if it names none; `eos_ids`, every id
    that ends a generation; `chat_template`, None if there is none. Nothing changes once it is built.
    """

    def __init__(self, vocabulary: Vocabulary, codec: Codec) -> None:
        self._vocabulary, self._codec = vocabulary, codec
        self._texts, self._kinds = vocabulary.texts, vocabulary.kinds
        self.vocab_size, self.eos_ids = len(vocabulary.texts), vocabulary.ends()
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.chat_template = vocabulary.chat_template

    @classmethod
    def from_metadata(cls, meta: Mapping[str, Any]) -> Self:
        """Build from GGUF metadata. FileFormatError names the key that is missing or malformed, UnsupportedError
        the tokenizer model or pre-tokenizer that this version does not know.
        """
        match get(meta, "tokenizer.ggml.model", str):
            case "gpt2":
                return cls(*bpe_from_metadata(meta))
            case "llama":
                return cls(*spm_from_metadata(meta))
            case model:
                raise UnsupportedError(
                    f"tokenizer model {model!r} (tokenizer.ggml.model) is not supported;"
                    " supported: 'gpt2' (byte-level BPE), 'llama' (SPM)"
                )

    @classmethod
    def from_folder(cls, folder: str | Path, *, vocab_size: int | None = None) -> Self:
        """Build from a Hugging Face folder: tokenizer.json, and if they are there tokenizer_config.json (BOS, EOS,
        template), generation_config.json and config.json (ids that end a generation) and chat_template.jinja.

        `vocab_size`: the rows of the model's embedding, often more than there are tokens; the rest are unused tokens.
        FileFormatError or UnsupportedError names the file and what is wrong with it.
        """
        return cls(*codec_from_folder(Path(folder), vocab_size))

    def encode(self, text: str, *, bos: bool = True, special: bool = True) -> list[int]:
        """Ids of `text`; RequestError if it is not valid Unicode.

        `bos`: begin with BOS (and end with EOS) if the model asks for that and the text does not already.
        `special`: control tokens spelt out in the text become those tokens; otherwise they are text like any other.
        """
        ids = self._codec.encode(text, special)
        if bos and self._vocabulary.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        if bos and self._vocabulary.add_eos and self.eos_id is not None and ids[-1:] != [self.eos_id]:
            ids.append(self.eos_id)
        return ids

    def spelt(self, text: str) -> str:
        """What of valid `text` its tokens spell, but for bytes that no token spells; "" if only encoding can tell."""
        return self._codec.spelt(text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`, bytes that are not UTF-8 as U+FFFD; `skip_special=False` spells control tokens out.

        The space that `encode` put before the text, if the model's tokenizer does that, is taken off again.
        """
        ids = list(ids)
        spelt = [self.token_bytes(id, skip_special=skip_special) for id in ids]
        if self._codec.space_prefix:
            first = next((n for n, id in enumerate(ids) if self._kinds.get(id, Kind.NORMAL) in _SPELT_OUT), len(ids))
            spelt[first : first + 1] = [spelling.removeprefix(b" ") for spelling in spelt[first : first + 1]]
        return b"".join(spelt).decode(errors="replace")

    def token_bytes(self, id: int, *, skip_special: bool = True) -> bytes:
        """What one token adds to the text before it, perhaps part of a character; b"" for control, unknown and unused
        tokens if skipped. RequestError for an id outside the vocabulary.
        """
        text, kind = self.token_text(id), self._kinds.get(id, Kind.NORMAL)
        return b"" if skip_special and kind not in _SPELT_OUT else self._codec.spell(text, kind)

    def token_text(self, id: int) -> str:
        """The vocabulary's own spelling of a token; RequestError for an id outside the vocabulary."""
        if not 0 <= id < self.vocab_size:
            raise RequestError(f"token id {id} is outside the vocabulary of {self.vocab_size}")
        return self._texts[id]
