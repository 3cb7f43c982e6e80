"""Hyper-parameters of a model, frozen, read from a file's metadata; unknown settings are refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.program.ops import RopeSpec, Router


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts in each layer behind the first `dense_layers`, whose feed-forward is an ordinary one."""

    router: Router
    ff: int  # of one expert
    shared_ff: int = 0  # of the experts that serve every row, together
    dense_layers: int = 0
    latent: int = 0  # width of the space that routed experts work in; 0: the model's own


@dataclass(frozen=True)
class LatentSpec:
    """Sizes of latent attention: of the latents, and of a head's parts. Rotated or not, a row ends in `pe` elements."""

    q_rank: int  # of the queries' own latent; 0: none
    rank: int
    nope: int
    pe: int
    value: int
    scale: float  # of the scores


@dataclass(frozen=True)
class DeltaSpec:
    """Sizes of delta attention, and which layers have it."""

    heads: int
    dim: int  # of a head
    taps: int  # latest rows that a convolution reads, its own included
    layers: tuple[bool, ...]
    lowest: float | None = None  # of log decays, where there is a bound


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of a decoder. Lengths are in tokens, widths in elements."""

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
    rope: RopeSpec | None = None
    moe: MoeSpec | None = None
    latent: LatentSpec | None = None
    delta: DeltaSpec | None = None


class Settings:
    """One architecture's metadata keys, read by short name; every key must be read or declared harmless."""

    def __init__(self, meta: Mapping[str, Any], arch: str) -> None:
        self.arch = arch
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

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """A list of yes and no; None where there is no list."""
        value = self._list(key)
        if value is None:
            return None
        self._read.add(key)
        if not all(isinstance(flag, bool) for flag in value):
            raise FileFormatError(f"{self._prefix}{key} must hold true and false alone, not {value!r:.80}")
        return tuple(value)

    def integers(self, key: str, count: int, *, low: int = 0, high: int = 1 << 24) -> tuple[int, ...]:
        """A list of `count` whole numbers within [low, high]."""
        self._read.add(key)
        value = self._list(key)
        if value is None or len(value) != count or not all(type(n) is int and low <= n <= high for n in value):
            found = self._values.get(key, "missing") if value is None else value
            wanted = f"a list of {count} whole numbers from {low} to {high}"
            raise FileFormatError(f"{self._prefix}{key} must be {wanted}; it is {found!r:.80}")
        return tuple(value)

    def only(self, key: str, *accepted: object) -> Any:
        """A setting that may be absent or hold one of these values; anything else asks for what is not built."""
        self._read.add(key)
        value = self._values.get(key)
        # A number is no yes or no, though Python takes 1 for True.
        alike = [a for a in accepted if isinstance(a, bool) == isinstance(value, bool)]
        if key in self._values and value not in alike:
            choices = ", ".join(repr(a) for a in accepted)
            raise UnsupportedError(
                f"setting {self._prefix}{key} = {value!r:.80} is not supported (supported: {choices})"
            )
        return value

    def refuse_unread(self) -> None:
        """Raise if a key remains that nothing looked at: it may change the model."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read))
            raise UnsupportedError(f"unknown setting {self._prefix}{unknown[0]}; supported: {known}")

    def _list(self, key: str) -> list[Any] | None:
        """None where the value is no list."""
        value = self._values.get(key)
        if isinstance(value, memoryview):  # an array of a GGUF file
            value = value.tolist()
        return value if isinstance(value, list) else None

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise FileFormatError(f"{self._prefix}{key} is missing from the file")
        return value


def decoder_spec(
    s: Settings,
    tensors: Mapping[str, TensorInfo],
    *,
    eps: str = "attention.layer_norm_rms_epsilon",
    head_dim: int | None = None,
) -> ModelSpec:
    """What every decoder states about itself; `eps` is the key of its norms' epsilon. Rotation is read apart, and so
    are the sizes of heads where `head_dim` is given: they then share one key head."""
    width, heads = s.integer("embedding_length"), s.integer("attention.head_count", high=4096)
    apart = head_dim is not None
    spec = ModelSpec(
        arch=s.arch,
        layers=s.integer("block_count", high=4096),
        width=width,
        ff=s.integer("feed_forward_length"),
        heads=heads,
        kv_heads=1 if apart else s.integer("attention.head_count_kv", heads, high=4096),
        head_dim=head_dim or s.integer("attention.key_length", width // heads, high=1024),
        vocab=s.integer("vocab_size", _rows(tensors, "token_embd.weight")),
        context=s.integer("context_length"),
        norm_eps=s.number(eps),
    )
    if apart:
        return spec
    s.only("attention.value_length", spec.head_dim)
    if spec.heads % spec.kv_heads:
        raise FileFormatError(f"{s.arch}: {spec.heads} query heads do not split over {spec.kv_heads} key heads")
    if spec.head_dim % 2:
        raise UnsupportedError(f"{s.arch}: head size {spec.head_dim} is odd; supported: even sizes")
    return spec


def _rows(tensors: Mapping[str, TensorInfo], name: str) -> int:
    if name not in tensors:
        raise FileFormatError(f"tensor {name!r} is missing from the file")
    if len(shape := tensors[name].shape) != 2:
        raise FileFormatError(f"tensor {name!r} has shape {shape}, not rows and columns")
    return shape[0]
