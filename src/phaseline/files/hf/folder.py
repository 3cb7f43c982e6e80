"""A Hugging Face folder: config.json and safetensors, presented in GGUF's terms.

Bytes stay mapped where GGUF stores a tensor in the same way; others are rearranged each time they are read.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.files.hf.architectures import layout_of
from phaseline.files.hf.config import Config
from phaseline.files.hf.layout import Layout, Rule
from phaseline.files.hf.shards import Shards
from phaseline.files.quant import FORMATS
from phaseline.files.strict_json import read_object

_WORDS: Mapping[str, np.dtype[Any]] = MappingProxyType(  # that hold an element of each type
    {"F32": np.dtype("<u4"), "F16": np.dtype("<u2"), "BF16": np.dtype("<u2")}
)
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,8})")


class HFFolder:
    """See `phaseline.files.base.ModelFile`.

    Errors while opening: FileFormatError for what is malformed or missing, UnsupportedError for a model, setting or
    element type that this version does not read; both name it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        config = Config(read_object(path / "config.json"), str(path / "config.json"))
        layout = layout_of(config)
        self._shards = Shards(path)
        self.parts: Sequence[Path] = self._shards.parts
        keys = {f"{layout.arch}.{key}": value for key, value in layout.keys.items()}
        self.metadata: Mapping[str, Any] = MappingProxyType({"general.architecture": layout.arch, **keys})
        self._sources = self._find(layout)
        self._made = layout.made
        infos = {name: source.info for name, source in self._sources.items()}
        infos |= {name: TensorInfo(name, v.shape, FORMATS["F32"], v.nbytes) for name, v in self._made.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(infos)
        self._check(layout)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Encoded bytes of a tensor, shape (rows, bytes per row), read-only; FileFormatError if it is missing."""
        info = self._info(name)
        flat = self._made[name].view(np.uint8) if name in self._made else self._read(self._sources[name])
        raw = flat.reshape(-1, info.format.row_bytes(info.shape[-1]))
        raw.flags.writeable = False
        return raw

    def float32(self, name: str) -> NDArray[np.float32]:
        """Decoded values in the tensor's numpy shape; FileFormatError if it is missing."""
        info = self._info(name)
        return info.format.decode_rows(self.raw(name)).reshape(info.shape)

    def release(self, name: str) -> None:
        """Drop the pages that hold nothing but this tensor; reading it again maps them again."""
        self._info(name)
        for piece in self._sources[name].pieces if name in self._sources else ():
            self._shards.release(piece)

    def close(self) -> None:
        """Unmap the files now, or when the last array that `raw` gave out is dropped."""
        self._shards.close()

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise FileFormatError(f"{self.path}: tensor {name!r} is missing")
        return self.tensors[name]

    def _find(self, layout: Layout) -> dict[str, "_Source"]:
        """Where each tensor of GGUF comes from. Refuses tensors that the architecture does not know."""
        found: dict[str, tuple[Rule, dict[int, str]]] = {}  # GGUF's name -> how, and the tensors by their place
        for name in self._shards.tensors:
            numbers = [int(word) for word in name.split(".") if _NUMBER.fullmatch(word)]
            starred = ".".join("*" if _NUMBER.fullmatch(word) else word for word in name.split("."))
            layers = layout.keys["block_count"]
            spare = bool(numbers) and layers <= numbers[0] < layers + layout.spare_layers
            if spare or starred in layout.unused or (layout.tied and name == "lm_head.weight"):
                continue  # the last is the embedding's twin
            rule = layout.rule(starred)
            if rule is None:
                raise UnsupportedError(f"{self.path}: tensor {name!r:.200} has no part in {layout.arch} as built here")
            for number, limit in zip(numbers, (layers, layout.experts), strict=False):
                if number >= limit:
                    raise FileFormatError(
                        f"{self.path}: tensor {name!r:.200}: by config.json, {number} must be under {limit}"
                    )
            target = rule.target.replace("*", str(numbers[0])) if numbers else rule.target
            pieces = found.setdefault(target, (rule, {}))[1]
            place = numbers[1] if len(numbers) > 1 else -1
            if place in pieces:
                raise FileFormatError(f"{self.path}: tensors {pieces[place]!r} and {name!r} are the same one twice")
            pieces[place] = name
        return {target: self._source(target, *how, layout.experts) for target, how in found.items()}

    def _source(self, target: str, rule: Rule, by_place: Mapping[int, str], experts: int) -> "_Source":
        """One tensor of GGUF. Experts are stacked in order, and all must be there, alike."""
        places = [-1] if -1 in by_place else range(experts)
        if missing := set(places) - by_place.keys():
            raise FileFormatError(f"{self.path}: expert {min(missing)} of {target!r} is missing")
        pieces = tuple(by_place[place] for place in places)
        first = self._shards.tensors[pieces[0]]
        for piece in pieces:
            other = self._shards.tensors[piece]
            if (other.dtype, other.shape) != (first.dtype, first.shape):
                raise FileFormatError(f"{self.path}: tensors {pieces[0]!r} and {piece!r} differ in type or shape")
        if first.dtype not in _WORDS:
            raise UnsupportedError(
                f"{self.path}: tensor {pieces[0]!r:.200} is of type {first.dtype} (supported: {', '.join(_WORDS)})"
            )
        if not first.shape or 0 in first.shape:
            raise FileFormatError(f"{self.path}: tensor {pieces[0]!r:.200} has shape {first.shape}: it holds nothing")
        try:
            shape = rule.move.shape(first.shape) if rule.move else first.shape
        except FileFormatError as error:
            raise FileFormatError(f"{self.path}: tensor {pieces[0]!r:.200}: {error}") from None
        if -1 not in by_place:
            shape = (experts, *shape)
        format = FORMATS["F32" if rule.change else first.dtype]
        return _Source(TensorInfo(target, shape, format, math.prod(shape) * format.bytes), first.dtype, pieces, rule)

    def _check(self, layout: Layout) -> None:
        """What the tensors must agree on with the config."""
        rows = self._info("token_embd.weight").shape[0]
        if rows != layout.vocab:
            raise FileFormatError(
                f"{self.path}: config.json says vocab_size {layout.vocab}, the embedding has {rows} rows"
            )
        if not layout.tied and "output.weight" not in self.tensors:
            raise FileFormatError(f"{self.path}: lm_head.weight is missing, and tie_word_embeddings is not true")

    def _read(self, source: "_Source") -> NDArray[np.uint8]:
        """The bytes of a tensor as GGUF has it: mapped if they are so in the file, else made now."""
        if not source.rule.move and not source.rule.change and len(source.pieces) == 1:
            return self._shards.array(source.pieces[0])
        out = [self._rearranged(source, piece) for piece in source.pieces]
        return out[0] if len(out) == 1 else np.concatenate(out)

    def _rearranged(self, source: "_Source", piece: str) -> NDArray[np.uint8]:
        flat = self._shards.array(piece)
        if source.rule.change:
            rows = FORMATS[source.dtype].decode_rows(flat.reshape(1, -1))
            return source.rule.change(rows).view(np.uint8).reshape(-1)
        if not source.rule.move:
            return flat
        words = flat.view(_WORDS[source.dtype]).reshape(self._shards.tensors[piece].shape)
        return np.ascontiguousarray(source.rule.move.apply(words)).view(np.uint8).reshape(-1)


@dataclass(frozen=True, slots=True)
class _Source:
    """A tensor of GGUF: its elements' type in the folder, the tensors it is made of, and how."""

    info: TensorInfo
    dtype: str
    pieces: tuple[str, ...]
    rule: Rule
