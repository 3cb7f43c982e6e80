"""Hyper-parameters of a model, frozen, read from a file's metadata; unknown settings are refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaseline.errors import FileFormatError, UnsupportedError


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of a dense decoder. Lengths are in tokens, widths in elements."""

    arch: str
    layers: int
    width: int
    ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    norm_eps: float
    rope_dims: int
    rope_base: float


class Settings:
    """One architecture's metadata keys, read by short name; every key must be read or declared harmless."""

    def __init__(self, meta: Mapping[str, Any], arch: str) -> None:
        self._prefix = arch + "."
        self._values = {k[len(self._prefix) :]: v for k, v in meta.items() if k.startswith(self._prefix)}
        self._read: set[str] = set()

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = 1 << 24) -> int:
        """A whole number within [low, high]."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FileFormatError(f"{self._prefix}{key} must be a whole number, not {value!r:.80}")
        if not low <= value <= high:
            raise FileFormatError(f"{self._prefix}{key} is {value}; accepted: {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number within (low, high]."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FileFormatError(f"{self._prefix}{key} must be a number, not {value!r:.80}")
        if not low < value <= high:
            raise FileFormatError(f"{self._prefix}{key} is {value}; accepted: over {low} up to {high}")
        return float(value)

    def only(self, key: str, *accepted: object) -> None:
        """A setting that may be absent or hold one of these values; anything else asks for what is not built."""
        self._read.add(key)
        if key in self._values and self._values[key] not in accepted:
            choices = ", ".join(repr(a) for a in accepted)
            raise UnsupportedError(
                f"setting {self._prefix}{key} = {self._values[key]!r:.80} is not supported (supported: {choices})"
            )

    def refuse_unread(self) -> None:
        """Raise if a key remains that nothing looked at: it may change the model."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read))
            raise UnsupportedError(f"unknown setting {self._prefix}{unknown[0]}; supported: {known}")

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise FileFormatError(f"{self._prefix}{key} is missing from the file")
        return value
