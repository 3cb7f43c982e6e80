"""Where systems stand against each other, phase by phase: pure functions of samples in rounds."""

import datetime as dt
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.contenders import PHASES
from phaseline.lab.phase_ratio import ABOUT_ONE, ratio_meaning
from phaseline.lab.stats import bootstrap_interval, median

_REREAD = 0.5  # of the time that a prompt takes: a token that takes longer computes all before it anew

Rounds = Sequence[float | None]  # seconds of one sample per round; None where it failed


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95% interval over rounds; the bounds are None where there were too few of them."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, above: Rounds, below: Rounds) -> Self | None:
        """Median over rounds of above / below, of rounds that have both; None if none has."""
        values = [a / b for a, b in zip(above, below, strict=True) if a is not None and b is not None]
        if not values:
            return None
        low, high = bootstrap_interval(values) or (None, None)
        return cls(median(values), low, high)

    def scaled(self, factor: float) -> "Ratio":
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Ratio(self.value * factor, low, high)

    @property
    def certain(self) -> bool:
        """The interval leaves 1 out."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    def below(self, limit: float) -> bool | None:
        """Whether it is, also at the ends of its interval; None if these disagree."""
        sides = {end < limit for end in (self.value, self.low, self.high) if end is not None}
        return sides.pop() if len(sides) == 1 else None

    def to_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Standing:
    """One system.

    read   for the same prompts as any other system's, shortest first: tokens, and seconds of TTFT by round
    write  seconds of TPOT by round, behind `context` tokens
    """

    name: str
    read: Sequence[tuple[int, Rounds]]
    write: Rounds
    context: int

    @property
    def length(self) -> int:
        """Tokens of the prompt at which prefill is stated: the longest."""
        return self.read[-1][0]

    @property
    def prefill_tok_s(self) -> float | None:
        seconds = _median(self.read[-1][1])
        return None if seconds is None else self.length / seconds

    @property
    def marginal_tok_s(self) -> float | None:
        """Tokens per second between the two longest prompts, which leaves fixed costs out; None where there is none."""
        times = [(tokens, seconds) for tokens, rounds in self.read[-2:] if (seconds := _median(rounds)) is not None]
        if len(times) < 2 or times[1][1] <= times[0][1]:
            return None
        return (times[1][0] - times[0][0]) / (times[1][1] - times[0][1])

    @property
    def decode_tok_s(self) -> float | None:
        seconds = _median(self.write)
        return None if seconds is None else 1 / seconds

    @property
    def phase_ratio(self) -> Ratio | None:
        """Prefill's rate over decode's."""
        ratio = Ratio.of(self.write, self.read[-1][1])
        return ratio and ratio.scaled(self.length)

    @property
    def rereads(self) -> bool:
        """A token takes about as long as the prompt before it: nothing of it was kept."""
        nearest = min(self.read, key=lambda one: abs(one[0] - self.context))
        reading, writing = _median(nearest[1]), _median(self.write)
        return reading is not None and writing is not None and writing > _REREAD * reading

    def against(self, other: "Standing", phase: str) -> Ratio | None:
        """How many times as fast as another this is in a phase."""
        if phase == "decode":
            return Ratio.of(other.write, self.write)
        return Ratio.of(other.read[-1][1], self.read[-1][1])

    def worst(self, reference: "Standing") -> tuple[str, Ratio] | None:
        """The phase in which this is furthest behind the reference, or least ahead of it."""
        known = [(phase, ratio) for phase in PHASES if (ratio := self.against(reference, phase))]
        return min(known, key=lambda one: one[1].value, default=None)


def _median(rounds: Rounds) -> float | None:
    known = [seconds for seconds in rounds if seconds is not None]
    return median(known) if known else None


def noise(reference: Standing, again: Standing) -> dict[str, float | None]:
    """By phase, how far the reference seems to be from itself: the end of the interval that lies farther from 1."""
    found: dict[str, float | None] = {}
    for phase in PHASES:
        ratio = again.against(reference, phase)
        if ratio is None or ratio.low is None or ratio.high is None:
            found[phase] = None
        else:
            found[phase] = max(ratio.high - 1, 1 - ratio.low)
    return found


def sentence(standing: Standing, reference: Standing) -> str:
    """Which phase of a system is furthest behind the reference, and what that looks like."""
    worst = standing.worst(reference)
    if worst is None:
        return f"{standing.name} brought nothing to compare"
    phase, ratio = worst
    if ratio.value >= 1 or not ratio.certain:
        back = reference.worst(standing)
        assert back is not None  # the same rounds
        if back[1].value < 1 and back[1].certain:
            return f"{standing.name} is behind in neither phase; {_behind(reference, standing, *back)}"
        return f"{standing.name} and {reference.name} differ in neither phase beyond the noise of these rounds"
    return _behind(standing, reference, phase, ratio)


def alone(standing: Standing) -> str:
    """What a system's own phase ratio says of it."""
    ratio = standing.phase_ratio
    if ratio is None:
        return f"{standing.name} brought nothing to compare"
    meaning = ratio_meaning(ratio.value)
    if ratio.below(ABOUT_ONE) is None:
        meaning = "more rounds must tell whether it reads prompts in batches"
    return f"{standing.name}: phase ratio {ratio.value:.3g}, {meaning}"


def _behind(standing: Standing, other: Standing, phase: str, ratio: Ratio) -> str:
    behind = f"{standing.name} is furthest behind in {phase}, at {ratio.value:.2g} of the speed of {other.name}"
    own = standing.phase_ratio
    if phase == "prefill" and own is not None:
        about_one = own.below(ABOUT_ONE)
        if about_one:
            return (
                f"{behind}, and reads a prompt no faster than it writes (phase ratio {own.value:.2g}): that looks like "
                "a missing feature, batched prefill, not like tuning"
            )
        looks = "it looks like tuning, not like a missing feature"
        if about_one is None:
            looks = "more rounds must tell a missing feature, batched prefill, from tuning"
        return f"{behind}; its phase ratio is {own.value:.2g}: {looks}"
    if phase == "decode" and standing.rereads:
        return (
            f"{behind}, where a token takes about as long as the whole prompt before it: that looks like a missing "
            "feature, kept keys and values, not like tuning"
        )
    return f"{behind}: it looks like tuning, not like a missing feature"


@dataclass(frozen=True, slots=True)
class Published:
    """Figures that were published: rates, of what, when, and until when they may be quoted."""

    prefill_tok_s: float
    decode_tok_s: float
    date: dt.date
    expires: dt.date
    commit: str
    command: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a TOML file with exactly these keys. Raises FileFormatError or PhaselineError."""
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PhaselineError(f"cannot read the published figures from {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path} is not TOML: {error}") from None
        kinds = {field.name: field.type for field in fields(cls)}
        if data.keys() != kinds.keys():
            raise FileFormatError(f"{path}: published figures have exactly the keys {', '.join(kinds)}")
        for name, kind in kinds.items():
            value, rate = data[name], kind is float
            fits = type(value) in (int, float) and value > 0 if rate else type(value) is kind
            if not fits:
                needed = "a number above 0" if rate else "a date such as 2026-01-31" if kind is dt.date else "a text"
                raise FileFormatError(f"{path}: {name} = {value!r} must be {needed}")
        return cls(**data)

    def denominator(self, standing: Standing, today: dt.date) -> dict[str, Any]:
        """The row of denominators that these figures give; what another day's machine did has no interval."""
        rates = {"prefill": standing.prefill_tok_s, "decode": standing.decode_tok_s}
        then = {"prefill": self.prefill_tok_s, "decode": self.decode_tok_s}
        ratios = {
            p: None if (rate := rates[p]) is None else Ratio(rate / then[p], None, None).to_dict() for p in PHASES
        }
        return {
            "of": standing.name,
            "kind": "published",
            "against": f"published {self.date}",
            **ratios,
            "commit": self.commit,
            "date": self.date.isoformat(),
            "command": self.command,
            "expires": self.expires.isoformat(),
            "expired": today > self.expires,
        }


def measured_denominator(kind: str, standing: Standing, other: Standing, today: dt.date) -> dict[str, Any]:
    """A row of denominators measured in the same rounds: `attribution` or `parent`."""
    ratios = {phase: (ratio := standing.against(other, phase)) and ratio.to_dict() for phase in PHASES}
    return {
        "of": standing.name,
        "kind": kind,
        "against": other.name,
        **ratios,
        "commit": None,
        "date": today.isoformat(),
        "command": None,
        "expires": None,
        "expired": False,
    }
