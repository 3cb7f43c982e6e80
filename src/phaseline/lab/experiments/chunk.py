"""What chunks cost, where that leaves the floor, and which size keeps a stated gap: measured beside running streams."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.chunk_advice import Advice, ChunkCost, advise, chunk_cost
from phaseline.lab.experiments.clash import Clash
from phaseline.lab.experiments.interference import clash_row
from phaseline.lab.experiments.stage import Scene, Setting, Stage
from phaseline.lab.stats import interleave, median
from phaseline.lab.wording import counted

MOST_PIECES = 32  # in which a prompt is read; smaller chunks get a shorter one, and no place on the frontier
NEAR_BEST = 1.1  # a TTFT of up to so many times the best one is about as good
_STEADY = 0.05  # a pace that changes by less is the same
_POINT = ("worst_gap_s", "worst_gap_interval_s", "ttft_s", "ttft_interval_s")


class ChunkSize:
    """Each size once a round, in a random order. Then, if there is a budget, our own engine is tried with the answer:
    the recommended chunk, and the budget itself, by which it sizes its chunks alone.

    A server's chunk can't be changed from here. There a size is that of the whole prompt.
    """

    name = "chunk"

    def __init__(
        self,
        stage: Stage,
        scene: Scene,
        sizes: Sequence[int],
        *,
        repeats: int = 5,
        itl_budget_ms: float | None = None,
    ) -> None:
        if len(set(sizes)) < 3 or min(sizes) < 1 or repeats < 1:
            raise RequestError(f"sizes {list(sizes)}, {repeats} repeats: at least three sizes from 1, and one repeat")
        if stage.own is not None and max(sizes) > scene.intruder_tokens:
            raise RequestError(f"a chunk of {max(sizes)} is more than the prompt of {scene.intruder_tokens} tokens")
        if itl_budget_ms is not None and not itl_budget_ms > 0:
            raise RequestError(f"ITL budget = {itl_budget_ms} ms: it must be above 0")
        self._stage, self._scene, self._repeats, self._budget_ms = stage, scene, repeats, itl_budget_ms
        self._samples: dict[int, list[Clash]] = {size: [] for size in sorted(set(sizes))}
        self._checks: dict[Setting, list[Clash]] = {}

    async def run(self, progress: Progress) -> None:
        total = self._repeats * len(self._samples)
        progress(0, total, "warm-up")
        await self._stage.warm_up(self._scene)
        rounds = interleave(list(self._samples), self._repeats, self._stage.seed)
        for number, size in enumerate(chain.from_iterable(rounds)):
            progress(number, total, f"chunk {size}")
            self._samples[size].append(await self._stage.play(*self._played(size)))
        advice = advise(self._samples, self._budget_ms)
        if advice and self._stage.own is not None:
            settings = [Setting(max(self._samples), self._budget_ms)]
            settings += [Setting(advice.chunk)] if advice.chunk else []
            self._checks = {setting: [] for setting in settings}
            for setting in chain.from_iterable(interleave(settings, self._repeats, self._stage.seed)):
                progress(total, total, f"check: {setting.label}")
                self._checks[setting].append(await self._stage.play(self._scene, setting))
        progress(total, total, "done")

    def record(self) -> dict[str, Any]:
        """See `Experiment`. `results` has the sizes, `checks` what was tried with the answer, `frontier` the worst gap
        and TTFT of each size that read the whole prompt."""
        own = self._stage.own is not None
        rows = [clash_row(*self._played(size), runs) | {"size": size} for size, runs in self._samples.items() if runs]
        checks = [clash_row(self._scene, setting, runs) for setting, runs in self._checks.items() if runs]
        cost = chunk_cost(self._samples, self._scene.victims, chunked=own)
        points = [row for row in rows if own and row["asked_tokens"] == self._scene.intruder_tokens]
        frontier = [{name: row[name] for name in ("size", *_POINT)} for row in points if row["ttft_s"]]
        advice = advise(self._samples, self._budget_ms)
        record: dict[str, Any] = {
            "finding": " ".join(_finding(cost, frontier, advice, checks, rows)) or "Nothing was measured.",
            "results": rows,
            "cost": cost and cost.to_dict(),
            "frontier": frontier,
            "recommendation": advice and advice.to_dict(),
            "checks": checks,
        }
        if rows and all(row["worst_gap_s"] is None for row in rows):
            errors = [error for row in rows for error in row["errors"]]
            record["error"] = f"nothing could be measured: {errors[0] if errors else 'no victim had a gap'}"
        return record

    def _played(self, size: int) -> tuple[Scene, Setting]:
        if self._stage.own is None:
            return replace(self._scene, intruder_tokens=size), Setting()
        return replace(self._scene, intruder_tokens=min(self._scene.intruder_tokens, size * MOST_PIECES)), Setting(size)


def _finding(
    cost: ChunkCost | None,
    frontier: Sequence[Mapping[str, Any]],
    advice: Advice | None,
    checks: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> list[str]:
    told = []
    if cost is not None:
        told.append(f"A step of decode rows alone takes {_ms(cost.base_s)}.")
        if cost.knee is None:
            told.append(f"Up to {cost.sizes[1]:.0f} tokens of a prompt join it for nothing that could be measured.")
        else:
            told.append(
                f"About {cost.knee:.0f} tokens of a prompt{_range(cost.knee_interval)} join it for nothing; each more "
                f"costs {_ms(cost.slope_s)}, which is {1 / cost.slope_s:.0f} tokens a second."
            )
        if cost.noise is not None:
            told.append(f"Between rounds, what a chunk costs varies by {cost.noise:.1%}.")
    if frontier:
        best = min(point["ttft_s"] for point in frontier)
        small = next(point for point in frontier if point["ttft_s"] <= NEAR_BEST * best)
        told.append(
            f"From chunk {small['size']} on, TTFT is within {NEAR_BEST - 1:.0%} of the best, {_ms(best)}; there the "
            f"worst gap is {_ms(small['worst_gap_s'])}."
        )
    if advice is not None:
        told.append(_advised(advice))
    for row in checks:
        if row["worst_gap_s"] is not None and row["ttft_s"] is not None:
            told.append(f"Tried, {row['setting']}: worst gap {_ms(row['worst_gap_s'])}, TTFT {_ms(row['ttft_s'])}.")
    drift = _drift(cost, checks)
    if drift is not None:
        told.append(f"By then decode alone took {drift:.2f} times as long as before: the machine's pace had changed.")
    errors = [error for row in (*rows, *checks) for error in row["errors"]]
    if errors:
        told.append(f"{counted(len(errors), 'stream')} failed: {errors[0]}.")
    return told


def _drift(cost: ChunkCost | None, checks: Sequence[Mapping[str, Any]]) -> float | None:
    """Decode alone in the checks over that in the sweep before them, if it differs by more than the noise."""
    bases = [row["before"]["median_gap_s"] for row in checks if row["before"]["median_gap_s"] is not None]
    if cost is None or not bases:
        return None
    drift = median(bases) / cost.base_s
    return drift if abs(drift - 1) > max(_STEADY, cost.noise or 0) else None


def _advised(advice: Advice) -> str:
    goal = f"For gaps of at most {advice.budget_ms:g} ms"
    if advice.chunk is None:
        why = f": decode alone takes {_ms(advice.base_s)}" if advice.base_s * 1e3 > advice.budget_ms else ""
        return f"{goal} no chunk that was measured is small enough{why}."
    sure = "; a single round tells nothing of how sure that is" if advice.interval is None else ""
    limit = ", the largest that was measured" if advice.limited else ""
    return (
        f"{goal} take --chunk {advice.chunk}: its worst gap should be {_ms(advice.worst_gap_s or 0)}. The largest that "
        f"keeps them is {advice.estimate:.0f}{_range(advice.interval)}{limit}{sure}."
    )


def _range(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" (95%: {interval[0]:.0f} to {interval[1]:.0f})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
