"""The tokenizer of a Hugging Face folder: tokenizer.json as the `tokenizers` library reads it, and its companions."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.files.tokenizer_bpe import spell_byte_level
from phaseline.files.tokenizer_codec import LibraryCodec, is_panic
from phaseline.files.tokenizer_spm import spell_spaced
from phaseline.files.tokenizer_vocab import Kind, Vocabulary

MAX_BYTES = 128 << 20  # of a file; vocabularies of 262k tokens with their merges take 33 MiB
MAX_TOKENS = 1 << 22
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPACED = frozenset(["Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"])  # decoders of SentencePiece's spelling
_SPACE = ({"String": " "}, "▁")  # what is replaced, and by what
# Stages that keep every byte, but that characters are composed, and a space is spelt "▁".
_KEEPING = frozenset(["ByteLevel", "Digits", "Metaspace", "NFC", "Prepend", "Replace", "Split"])

_Json = Mapping[str, Any]


def codec_from_folder(folder: Path, vocab_size: int | None) -> tuple[Vocabulary, LibraryCodec]:
    """See Tokenizer.from_folder."""
    path = folder / "tokenizer.json"
    if not path.exists():
        others = "tokenizer.model, tiktoken.model, vocab.json"
        raise FileFormatError(f"{path}: missing; tokenizers in other files ({others}) are not read")
    content = _read(path)
    rules = _object(path, content)
    try:
        return _codec(folder, rules, content, vocab_size)
    except PhaselineError as error:
        raise type(error)(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # parts the library does not check
        raise FileFormatError(f"{path}: malformed: {type(error).__name__} {error}") from None
    except BaseException as error:
        if not is_panic(error):
            raise
        raise FileFormatError(f"{path}: the tokenizers library breaks down on it: {error}") from None


def _codec(folder: Path, rules: _Json, content: str, vocab_size: int | None) -> tuple[Vocabulary, LibraryCodec]:
    library = _library(content)
    decoders = [decoder["type"] for decoder in _parts(rules, "decoder", "decoders")]
    if decoders == ["ByteLevel"]:
        spell: Callable[[str, Kind], bytes] = spell_byte_level
    elif decoders and _SPACED.issuperset(decoders):
        spell = spell_spaced
    else:
        raise UnsupportedError(
            f"decoder {decoders} is not supported; supported: ByteLevel, {', '.join(sorted(_SPACED))}"
        )
    if rules["model"].get("dropout"):
        raise UnsupportedError("a model with dropout is not supported: the same text must give the same ids")

    @cache
    def plain() -> tokenizers.Tokenizer:
        """The same, but for control tokens, which it takes for text. Rarely needed, and large."""
        found = _library(content)
        found.encode_special_tokens = True
        return found

    vocabulary = _vocabulary(folder, rules, library, vocab_size)
    return vocabulary, LibraryCodec(
        library, plain, spell, space_prefix=_puts_space(rules), spelt=_spelt(rules, vocabulary)
    )


def _library(content: str) -> tokenizers.Tokenizer:
    try:
        library = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library's errors have no class of their own
        raise FileFormatError(f"the tokenizers library refuses it: {error}") from None
    library.no_truncation()
    library.no_padding()
    return library


def _vocabulary(folder: Path, rules: _Json, library: tokenizers.Tokenizer, vocab_size: int | None) -> Vocabulary:
    ids = library.get_vocab(with_added_tokens=True)
    if not ids:
        raise FileFormatError("it has no tokens")
    if max(ids.values()) >= MAX_TOKENS:
        raise FileFormatError(f"it has the token id {max(ids.values())}; {MAX_TOKENS - 1} is the largest possible")
    count = max(ids.values()) + 1
    if vocab_size is not None and count > vocab_size:
        raise FileFormatError(f"it has token ids up to {count - 1}, the model {vocab_size} tokens")
    by_id = {id: text for text, id in ids.items()}
    size = count if vocab_size is None else vocab_size
    texts = [by_id.get(id, f"[unused {id}]") for id in range(size)]
    settings = _optional(folder / "tokenizer_config.json")
    bos_id, eos_id = (_mark(settings, name, ids) for name in ("bos_token", "eos_token"))
    kinds = {id: Kind.UNUSED for id in range(size) if id not in by_id} | _kinds(rules, ids)
    add_bos, add_eos = _frame(library, settings, texts, bos_id, eos_id)
    return Vocabulary(
        texts,
        kinds,
        bos_id=bos_id,
        eos_id=eos_id,
        other_ends=frozenset(id for id in _ends(folder) if id < size),
        add_bos=add_bos,
        add_eos=add_eos,
        chat_template=_template(folder, settings),
    )


def _kinds(rules: _Json, ids: Mapping[str, int]) -> dict[int, Kind]:
    """Of the tokens that are not normal."""
    model = rules["model"]
    kinds: dict[int, Kind] = {}
    if model.get("byte_fallback"):
        kinds |= {id: Kind.BYTE for text, id in ids.items() if _BYTE.fullmatch(text)}
    if (unknown := ids.get(model.get("unk_token") or "")) is not None:
        kinds[unknown] = Kind.UNKNOWN
    for token in rules.get("added_tokens") or ():
        kinds[ids[token["content"]]] = Kind.CONTROL if token["special"] else Kind.USER_DEFINED
    return kinds


def _frame(
    library: tokenizers.Tokenizer, settings: _Json, texts: list[str], bos_id: int | None, eos_id: int | None
) -> tuple[bool, bool]:
    """Whether a text begins with BOS and ends with EOS: as the settings say, or else as the last stage does it."""
    plain, framed = (library.encode("a", add_special_tokens=special).ids for special in (False, True))
    start = next((n for n in range(len(framed)) if framed[n : n + len(plain)] == plain), 0)
    before, after = framed[:start], framed[start + len(plain) :]
    if before not in ([], [bos_id]) or after not in ([], [eos_id]):
        added = [texts[id] for id in before + after]
        raise UnsupportedError(f"its post_processor adds {added}; BOS before a text and EOS after it are supported")

    def asked(name: str, id: int | None, otherwise: bool) -> bool:
        wish = settings.get(name)
        return (wish if isinstance(wish, bool) else otherwise) and id is not None

    return asked("add_bos_token", bos_id, bool(before)), asked("add_eos_token", eos_id, bool(after))


def _puts_space(rules: _Json) -> bool:
    """Whether decoding takes off a leading space, because encoding puts one."""
    decoders = _parts(rules, "decoder", "decoders")
    return any(
        (part["type"] == "Strip" and part.get("content") == " " and part.get("start", 0) > 0)
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in decoders
    )


def _spelt(rules: _Json, vocabulary: Vocabulary) -> Callable[[str], str]:
    """See Codec.spelt: nothing is promised of stages that may drop or gather text."""
    before = _parts(rules, "normalizer", "normalizers")
    stages = [*before, *_parts(rules, "pre_tokenizer", "pretokenizers")]
    some_bytes = 0 < len(vocabulary.of_kind(Kind.BYTE)) < 256  # a character lacking one is unknown, a run of them once
    if (
        rules["model"].get("type") != "BPE"
        or some_bytes
        or not _KEEPING.issuperset(stage["type"] for stage in stages)
        or any(stage["type"] == "Replace" and (stage["pattern"], stage["content"]) != _SPACE for stage in stages)
        or any(stage["type"] == "Split" and stage["behavior"] == "Removed" for stage in stages)
        or any(token["lstrip"] or token["rstrip"] for token in rules.get("added_tokens") or ())  # swallow spaces
    ):
        return lambda text: ""
    composed = any(stage["type"] == "NFC" for stage in before)
    return normalizers.NFC().normalize_str if composed else lambda text: text


def _ends(folder: Path) -> Iterator[int]:
    """Ids that end a generation, as generation_config.json names them or else config.json."""
    for name in ("generation_config.json", "config.json"):
        found = _optional(folder / name).get("eos_token_id")
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if any(isinstance(id, bool) or not isinstance(id, int) or id < 0 for id in ids):
            raise FileFormatError(f"{folder / name}: eos_token_id is {found!r}; it takes a token id or a list of them")
        yield from ids
        if ids:
            return


def _template(folder: Path, settings: _Json) -> str | None:
    """chat_template.jinja, or else the settings' only template or the one named default."""
    if (path := folder / "chat_template.jinja").is_file():
        return _read(path)
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {template["name"]: template["template"] for template in found}.get("default")
    if not isinstance(found, str | None):
        raise FileFormatError("tokenizer_config.json's chat_template is neither text nor a list of named texts")
    return found or None


def _parts(rules: _Json, stage: str, several: str) -> list[Mapping[str, Any]]:
    """The steps of a stage, which is nothing, one step, or a sequence."""
    found = rules.get(stage) or {"type": "Sequence", several: []}
    return list(found[several]) if found["type"] == "Sequence" else [found]


def _mark(settings: _Json, name: str, ids: Mapping[str, int]) -> int | None:
    """The id of a token that the settings name by its text, as such or with further settings."""
    token = settings.get(name)
    text = token.get("content") if isinstance(token, Mapping) else token
    if text is not None and text not in ids:
        raise FileFormatError(f"tokenizer_config.json names {text!r} as {name}, which is no token here")
    return None if text is None else ids[text]


def _optional(path: Path) -> _Json:
    return _object(path, _read(path)) if path.is_file() else {}


def _object(path: Path, content: str) -> _Json:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: not a JSON object")
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise FileFormatError(f"{path}: larger than {MAX_BYTES} bytes")
        return content.decode()
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: not UTF-8: {error.reason}") from None
