"""What a page needs to know of a record, and the rows of measurements that records of several kinds share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from phaseline.lab.report.amounts import whole
from phaseline.lab.report.fields import Fields
from phaseline.lab.stats import spread

KINDS: Mapping[str, str] = {  # name of a record's kind: what it is called on the page
    "measure": "Both phases",
    "prefill": "Prefill sweep",
    "decode": "Decode sweep",
    "batch": "Batch sweep",
    "endtoend": "End to end",
    "interference": "Interference",
    "chunk": "Chunk size",
    "compare": "Comparison",
    "load": "Load",
    "regime": "Limits",
    "guard": "Guard",
    "guard-noise": "Guard, noise",
    "guard-prove": "Guard, proof",
}
PHASES = ("prefill", "decode", "mixed")


@dataclass(frozen=True)
class Record:
    """One record: `number` is how the page refers to it, `source` is where it was read."""

    number: int
    source: str
    kind: str
    fields: Fields

    @property
    def mark(self) -> str:
        return f"R{self.number}"

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        named = [self.model, self.fields.child("system").maybe_text("name") if "system" in self.fields else None]
        named += [
            f"{role} {one.maybe_text('name')}" if role else one.maybe_text("name") for role, one in self.systems()
        ]
        return f"{KINDS[self.kind]}: " + (", ".join(dict.fromkeys(name for name in named if name)) or "unnamed")

    @property
    def model(self) -> str | None:
        return self.fields.child("model").maybe_text("name")

    def systems(self) -> list[tuple[str, Fields]]:
        """Role (of a guard's systems) and facts of each system of a record of several."""
        if isinstance(self.fields.raw("systems"), list):
            return [("", one) for one in self.fields.children("systems")]
        found = self.fields.child("systems")
        return [(role, found.child(role)) for role, _ in found.items()]

    def rows(self) -> "list[Row]":
        """Rows of `results` that have a time; see `failures` for the others."""
        found = [fields for fields in self.fields.children("results") if "phase" in fields]
        return [Row.read(fields) for fields in found if "median_s" in fields or fields.positives("seconds")]

    def failures(self) -> list[str]:
        """What could not be measured, and why."""
        rows = self.fields.children("results")
        found = [(row, dict.fromkeys([*row.texts("error"), *row.texts("faults")])) for row in rows]
        return [f"{_named(row)}: {reason}" for row, reasons in found for reason in reasons]


@dataclass(frozen=True)
class Row:
    """A row of `results`, as the record contract has it; None where a record does not say."""

    phase: str
    system: str
    mode: str
    tokens: int | None
    context: int | None
    streams: int
    chunk: int | None
    seconds: Sequence[float]  # the samples; the median alone where there are no others
    median_s: float
    tok_s: float | None
    flops: float | None
    bytes: float | None
    limit: str | None
    fraction: float | None
    inferred: bool

    @classmethod
    def read(cls, fields: Fields) -> "Row":
        phase = fields.text("phase")
        if phase not in PHASES:
            raise fields.refusal("phase", f"one of {', '.join(PHASES)}")
        seconds = fields.positives("seconds") or [fields.positive("median_s")]
        return cls(
            phase,
            fields.maybe_text("system") or "",
            fields.maybe_text("mode") or "",
            fields.maybe_whole("tokens"),
            fields.maybe_whole("context"),
            fields.maybe_whole("streams") or 1,
            fields.maybe_whole("chunk"),
            seconds,
            fields.maybe_positive("median_s") or median(seconds),
            fields.maybe_positive("tok_s"),
            fields.maybe_positive("flops"),
            fields.maybe_positive("bytes"),
            fields.maybe_text("limit"),
            fields.maybe_number("fraction"),
            fields.maybe_flag("inferred") or False,
        )

    @property
    def name(self) -> str:
        """What tells its series from others of the record: the system, or the mode that it ran in."""
        return self.system or self.mode or self.phase

    @property
    def spread_s(self) -> float:
        """Median deviation of the samples from their median."""
        return spread(self.seconds)

    @property
    def size(self) -> str:
        """What tells the row from others of its phase and mode."""
        if self.phase == "prefill":
            return f"{whole(self.tokens)} tokens"
        return f"context {whole(self.context)}" + (f", {self.streams} streams" if self.streams > 1 else "")


def _named(fields: Fields) -> str:
    size = "tokens" if fields.raw("phase") == "prefill" else "context"
    parts = (fields.maybe_text("system"), fields.maybe_text("phase"), size, fields.maybe_whole(size))
    return " ".join(str(part) for part in parts if part is not None)


def of_kind(records: Iterable[Record], *kinds: str) -> Iterator[Record]:
    return (record for record in records if record.kind in kinds)
