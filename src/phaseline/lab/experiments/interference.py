"""A long prompt arrives while others decode: what it costs them, and what sparing them costs it, over chunk sizes."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from phaseline.errors import RequestError
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.clash import STALL, Clash, timeline, tolls
from phaseline.lab.experiments.stage import Scene, Setting, Stage
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.stats import bootstrap_interval, interleave, median, spread
from phaseline.lab.wording import counted


class Interference:
    """Each setting once a round, in a random order; every prompt is a new one."""

    name = "interference"

    def __init__(self, stage: Stage, scene: Scene, settings: Sequence[Setting], *, repeats: int = 3) -> None:
        if repeats < 1 or not settings:
            raise RequestError(f"{len(settings)} settings, {repeats} repeats: at least one of each")
        if stage.own is None and len(settings) > 1:
            raise RequestError("only our own engine changes its chunk from here: give the one that the server has")
        self._stage, self._scene, self._repeats = stage, scene, repeats
        self._clashes: dict[Setting, list[Clash]] = {setting: [] for setting in settings}

    async def run(self, progress: Progress) -> None:
        total = self._repeats * len(self._clashes)
        progress(0, total, "warm-up")
        await self._stage.warm_up(self._scene)
        rounds = interleave(list(self._clashes), self._repeats, self._stage.seed)
        for number, setting in enumerate(chain.from_iterable(rounds)):
            progress(number, total, setting.label)
            self._clashes[setting].append(await self._stage.play(self._scene, setting))
        progress(total, total, "done")

    def record(self) -> dict[str, Any]:
        return analyse(self._scene, self._clashes)


def analyse(scene: Scene, clashes: Mapping[Setting, Sequence[Clash]]) -> dict[str, Any]:
    """Finding, table and drawings of the clashes under each setting; settings without any are left out."""
    rows = [clash_row(scene, setting, runs) for setting, runs in clashes.items() if runs]
    record: dict[str, Any] = {
        "finding": _finding(scene, rows),
        "results": rows,
        "stall_factor": STALL,
        "timelines": [
            {"setting": setting.label, **timeline(_typical(runs))} for setting, runs in clashes.items() if runs
        ],
    }
    if rows and all(row["worst_gap_s"] is None for row in rows):
        errors = [error for row in rows for error in row["errors"]]
        record["error"] = f"nothing could be measured: {errors[0] if errors else 'no victim had a gap'}"
    return record


def clash_row(scene: Scene, setting: Setting, clashes: Sequence[Clash]) -> dict[str, Any]:
    """The row of a setting. Samples are one per clash; `worst_gap_s` and `ttft_s` are their medians, with intervals.

    seconds       the worst gap of any victim from the arrival to the intruder's first token
    before        median and worst gap of the victims before the arrival: the noise that `seconds` are held against
    stalls        of the victim that had most, in each clash; most_stalls: the pieces of the prompt, if that is known
    stalls_held   no clash had more stalls than that
    outlived      all victims still decoded when the first token came: else the gaps are not complete
    """
    paid = [tolls(clash) for clash in clashes]
    worst = [max(gap for toll in each for gap in toll.during) for each in paid if any(toll.during for toll in each)]
    before = [gap for each in paid for toll in each for gap in toll.before]
    during = [gap for each in paid for toll in each for gap in toll.during]
    ttft = [found for clash in clashes if (found := trace_metrics(clash.intruder).ttft) is not None]
    stalls = [max(known) for each in paid if (known := [toll.stalls for toll in each if toll.stalls is not None])]
    lengths = [count for clash in clashes if (count := clash.intruder.prompt_tokens) is not None]
    prompt = round(median(lengths)) if lengths else scene.intruder_tokens
    most = setting.most_pieces(prompt)
    return {
        "phase": "mixed",
        "mode": "chunk",
        "setting": setting.label,
        "chunk": setting.chunk,
        "itl_budget_ms": setting.itl_budget_ms,
        "tokens": prompt,
        "asked_tokens": scene.intruder_tokens,
        "context": scene.victim_tokens + scene.step,
        "streams": scene.victims,
        "seconds": worst,
        "median_s": median(worst) if worst else None,
        "spread_s": spread(worst) if worst else None,
        "tok_s": prompt / median(ttft) if ttft else None,
        "worst_gap_s": median(worst) if worst else None,
        "worst_gap_interval_s": bootstrap_interval(worst),
        "median_gap_s": median(during) if during else None,
        "before": {
            "median_gap_s": median(before) if before else None,
            "worst_gap_s": max(before, default=None),
        },
        "ttft_s": median(ttft) if ttft else None,
        "ttft_interval_s": bootstrap_interval(ttft),
        "ttft_samples_s": ttft,
        "stalls": stalls,
        "most_stalls": most,
        "stalls_held": None if most is None or not stalls else max(stalls) <= most,
        "outlived": all(toll.outlived for each in paid for toll in each),
        "cached_tokens": max((clash.intruder.cached_tokens or 0 for clash in clashes), default=None),
        "errors": [error for clash in clashes for error in clash.errors],
        "clashes": [clash.to_dict() for clash in clashes],
    }


def _typical(clashes: Sequence[Clash]) -> Clash:
    """The clash whose worst gap is the median one."""

    def worst(clash: Clash) -> float:
        return max((gap for toll in tolls(clash) for gap in toll.during), default=0.0)

    return sorted(clashes, key=worst)[len(clashes) // 2]


def _finding(scene: Scene, rows: Sequence[Mapping[str, Any]]) -> str:
    timed = [row for row in rows if row["worst_gap_s"] is not None and row["ttft_s"] is not None]
    if not timed:
        return "Nothing was measured."
    who = "the running stream" if scene.victims == 1 else f"each of {scene.victims} running streams"
    before = median([row["before"]["median_gap_s"] for row in timed])
    noise = max(row["before"]["worst_gap_s"] for row in timed)
    told = [
        f"Before a prompt of {timed[0]['tokens']} tokens arrived, {who} had a token every {_ms(before)}, "
        f"and waited {_ms(noise)} at worst."
    ]
    gentlest = min(timed, key=lambda row: float(row["worst_gap_s"]))
    quickest = min(timed, key=lambda row: float(row["ttft_s"]))
    told.append(f"While it was read, {'the worst gap was least with ' if len(timed) > 1 else ''}{_cost(gentlest)}.")
    if quickest is not gentlest:
        told.append(f"Its own first token came soonest with {_cost(quickest)}.")
    broken = [row for row in timed if row["stalls_held"] is False]
    if broken:
        listed = "; ".join(
            f"{row['setting']}: {counted(max(row['stalls']), 'stall')} in {counted(row['most_stalls'], 'piece')}"
            for row in broken
        )
        told.append(f"More stalls than the prompt has pieces, so something else held the streams up: {listed}.")
    if any(not row["outlived"] for row in timed):
        told.append("A running stream ended before the first token came: its gaps are not complete.")
    if any(row["cached_tokens"] for row in timed):
        told.append("A cache served part of the prompts, which were all new: the cost is flattered.")
    errors = [error for row in rows for error in row["errors"]]
    if errors:
        told.append(f"{counted(len(errors), 'stream')} failed: {errors[0]}.")
    return " ".join(told)


def _cost(row: Mapping[str, Any]) -> str:
    most = "" if row["most_stalls"] is None else f" of at most {row['most_stalls']}"
    stalls = f", {median(row['stalls']):.3g} stalls{most}" if row["stalls"] else ""
    return f"{row['setting']}: worst gap {_ms(row['worst_gap_s'])}, TTFT {_ms(row['ttft_s'])}{stalls}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
