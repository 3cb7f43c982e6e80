"""Tiny tokenizers in Hugging Face folders: byte-level as GPT-2 and Qwen have it, spaced as Llama 2 and Gemma."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

MARKS = ("<unk>", "<s>", "</s>", "<|im_end|>")  # ids 0 to 3 of both kinds
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def byte_level(merges: Sequence[str] = ("h e", "l l", "Ġ he", "Ġhe ll"), *, bos: bool = False) -> Tokenizer:
    """256 bytes and `merges` after the marks, then a user-defined <tool>; `bos`: its last stage puts BOS first."""
    texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    vocab = {text: id for id, text in enumerate([*MARKS, *texts])}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _finish(tokenizer, bos)


def spaced(
    merges: Sequence[str] = ("h e", "l l", "▁ he", "▁he ll"), *, prefix: bool = True, bos: bool = True
) -> Tokenizer:
    """The marks, 256 byte tokens, ASCII, "▁", "é" and `merges`, then <tool>; `prefix`: a space comes first."""
    texts = [*BYTES, *map(chr, range(0x21, 0x7F)), "▁", "é", *(merge.replace(" ", "") for merge in merges)]
    vocab = {text: id for id, text in enumerate([*MARKS, *texts])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replaced = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced]) if prefix else replaced
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return _finish(tokenizer, bos)


def write_folder(folder: Path, tokenizer: Tokenizer, settings: Mapping[str, Any] | None = None, **files: Any) -> Path:
    """tokenizer.json, tokenizer_config.json with `settings` besides BOS and EOS, and `files` (by stem) as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    files["tokenizer_config"] = {"bos_token": "<s>", "eos_token": "</s>"} | dict(settings or {})
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def _finish(tokenizer: Tokenizer, bos: bool) -> Tokenizer:
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer
