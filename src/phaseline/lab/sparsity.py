"""Sparse models: which of a step's weights its rows share, what that lets a chunk win, and what it won. Pure functions.

Rows share what every row needs; of the experts, those that several rows chose. Bytes are as the file stores them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from phaseline.lab.wording import rate
from phaseline.program.cost import prompt_cost, step_cost
from phaseline.program.ir import Program
from phaseline.program.ops import Experts, Work


class Reads(Protocol):
    """What an executor says that one mixture of experts read in its last step."""

    @property
    def distinct(self) -> int: ...

    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """The weights of one step. `distinct` experts of `experts` are means over the mixtures of the program.

    shared_bytes: needed by every row. routed_bytes and distinct: expected under uniform routing; the observed ones are
    what the executor counted, None where it was not asked.
    """

    rows: int
    experts: float
    shared_bytes: float
    routed_bytes: float
    distinct: float
    routed_bytes_observed: float | None = None
    distinct_observed: float | None = None

    @property
    def bytes(self) -> float:
        """All of it, as observed if it was."""
        routed = self.routed_bytes if self.routed_bytes_observed is None else self.routed_bytes_observed
        return self.shared_bytes + routed

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """Shared against routed bytes, and experts as expected and as counted."""
        seen = "" if self.distinct_observed is None else f", {self.distinct_observed:.1f} counted"
        routed = self.bytes - self.shared_bytes
        return (
            f"{self.rows} row{'s' * (self.rows > 1)}: {self.shared_bytes / 1e6:.4g} MB of weights are shared by all, "
            f"{routed / 1e6:.4g} MB belong to experts ({self.distinct:.1f} of {self.experts:g} expected under uniform "
            f"routing{seen})"
        )


def mixtures(program: Program) -> list[Experts]:
    """The program's mixtures of experts; none in a dense model."""
    return [op for op in program.ops if isinstance(op, Experts)]


def reading(program: Program, work: Work, reads: Iterable[Reads] = ()) -> Reading | None:
    """What a step reads of its weights, `reads` being what was counted; None for a dense model."""
    found, counted = mixtures(program), list(reads)
    if not found:
        return None
    cost = step_cost(program, work)
    return Reading(
        work.rows,
        sum(op.gate.shape[0] for op in found) / len(found),
        cost.shared_bytes,
        cost.routed_bytes,
        sum(op.distinct(work.rows) for op in found) / len(found),
        float(sum(r.bytes for r in counted)) if counted else None,
        sum(r.distinct for r in counted) / len(counted) if counted else None,
    )


def mean_reading(readings: Sequence[Reading]) -> Reading:
    """Of steps of one size: the mean of what was counted."""
    routed = [r.routed_bytes_observed for r in readings if r.routed_bytes_observed is not None]
    distinct = [r.distinct_observed for r in readings if r.distinct_observed is not None]
    if not routed or not distinct:
        return readings[0]
    return replace(readings[0], routed_bytes_observed=fmean(routed), distinct_observed=fmean(distinct))


def allowed_win(program: Program, many: Reading) -> float:
    """How many times fewer bytes per row a step reads than the same rows one by one, the head for the last alone."""
    return prompt_cost(program, many.rows, 1).weight_bytes / many.bytes


def dispatch_win(program: Program, many: Reading) -> float:
    """The same against rows that share all but the experts, of which each row reads its own."""
    own = sum(op.chosen.width * op.expert_bytes for op in mixtures(program))
    return (many.shared_bytes + many.rows * own) / many.bytes


def chunk_wins(program: Program, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each prompt that was read in one chunk: what its bytes allow over the walk and over dispatch, and its win.

    Rows are those of a measurement, with their `sparse` reading. Rates are compared, so the walk's may be of another
    length. Wins that were not measured are None.
    """
    prefills = [row for row in results if row["phase"] == "prefill"]
    walk = next((row for row in prefills if row["mode"] == "walk"), None)
    wins = []
    for row in prefills:
        if row["mode"] != "chunk" or not row.get("sparse") or row["sparse"]["rows"] != row["tokens"]:
            continue
        many = Reading(**row["sparse"])
        alone = [r for r in prefills if (r["mode"], r["tokens"]) == ("dispatch", row["tokens"])]
        wins.append(
            {
                "tokens": row["tokens"],
                "allowed": allowed_win(program, many),
                "measured": row["tok_s"] / walk["tok_s"] if walk else None,
                "allowed_over_dispatch": dispatch_win(program, many),
                "measured_over_dispatch": row["tok_s"] / alone[0]["tok_s"] if alone else None,
                "tok_s": row["tok_s"],
                "limit": row["limit"],
            }
        )
    return wins


def win_sentence(win: Mapping[str, Any]) -> str:
    """A chunk's win as bytes allow it and as it was measured."""
    parts = []
    for over, key in (("the walk", ""), ("dispatch row by row", "_over_dispatch")):
        if win[f"measured{key}"] is not None:
            parts.append(f"{win[f'measured{key}']:.2f} times {over}, where bytes allow {win[f'allowed{key}']:.2f}")
    return f"{win['tokens']} tokens in one chunk: {rate(win['tok_s'])}, {'; '.join(parts)}; limit {win['limit']}"
