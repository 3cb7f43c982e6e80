"""Prefill over prompt lengths: the floor, the slope behind it, and the price of logits that nobody reads."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.own import Own
from phaseline.lab.experiments.sweep import Cell, Sweep, cell_row, decode_cell, measured, prefill_cell, samples_of
from phaseline.lab.fit import Floor, fit_floor_slope
from phaseline.lab.phase_ratio import phase_ratio
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.stats import median
from phaseline.lab.steps import StepSize, step_bench
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.wording import ms, ms_span, percent, rate, rough, span
from phaseline.program.cost import step_cost
from phaseline.program.ops import Span, Work

LENGTHS = (1, 4, 16, 32, 64, 128, 256, 512, 1024)
_ALL_ROWS = 256  # rows of the step whose logits are wanted of the last row, or of all
_REPEATS = 7


class Prefill:
    """TTFT of prompts of several lengths, one at a time, beside one decode for the phase ratio.

    `own`: the system is our engine; it then tells predictions and bounds, and its step is run with the logits of the
    last row and of all rows.
    """

    name = "prefill"

    def __init__(
        self,
        system: StreamSystem,
        lengths: Sequence[int] = LENGTHS,
        *,
        context: int = 64,
        rounds: int | None = None,
        vocabulary: Vocabulary = WORDS,
        seed: int = 0,
        own: Own | None = None,
    ) -> None:
        if not lengths:
            raise RequestError("no prompt lengths: give at least one")
        self._own = own
        cells = [*(prefill_cell(n) for n in sorted(set(lengths))), decode_cell(context)]
        self._sweep = Sweep({"": system}, cells, rounds=rounds, vocabulary=vocabulary, seed=seed)
        self._rows_wanted: dict[str, list[float]] = {"last": [], "all": []}

    async def run(self, progress: Progress) -> None:
        if self._own is None:
            await self._sweep.run(progress)
            return
        self._own.expect([work for cell in self._sweep.samples for work in self._own.steps(cell)])
        await self._sweep.run(progress, self._own.observe)
        await self._measure_rows_wanted(self._own)

    def record(self) -> dict[str, Any]:
        rows = [cell_row(cell, rounds) for cell, rounds in self._sweep.samples.items()]
        if self._own is None or not self._sweep.rounds:
            return analyse(rows)
        cells: list[Cell] = list(self._sweep.samples)
        rows = [self._own.priced(cell, row) for cell, row in zip(cells, rows, strict=True)]
        extra = {"ceilings": self._own.ceilings.record(), "predicted": predict(self._own)}
        return analyse(rows, predicted=extra["predicted"], rows_wanted=self._rows_wanted) | extra

    async def _measure_rows_wanted(self, own: Own) -> None:
        last, all_rows = _step_sizes(own)
        with step_bench(own.system, [last, all_rows]) as bench:
            bench.seconds(all_rows)  # warm-up: its logits are the largest
            for _ in range(_REPEATS):
                self._rows_wanted["last"].append(bench.seconds(last))
                self._rows_wanted["all"].append(bench.seconds(all_rows))
                await asyncio.sleep(0)  # lets Ctrl-C in


def predict(own: Own) -> dict[str, Any]:
    """From the program and the ceilings: where arithmetic overtakes reading, what logits of all rows cost, and what the
    phase ratio would be if prompts were read token by token, without logits."""
    rows = _step_sizes(own)[0].rows
    one, many = (own.bounds([StepSize(n).work(own.kv_bytes)]) for n in (1, rows))
    per_row = (many.compute - one.compute) / (rows - 1) if rows > 1 else one.compute
    decode, walk = (own.bounds([Work([Span(rows, 1, wanted)], own.kv_bytes)]) for wanted in (1, 0))
    flops = [own.product_flops(size.work(own.kv_bytes)) for size in _step_sizes(own)]
    return {
        "floor_s": max(one.bandwidth, one.compute, one.launch),
        "knee": max(1.0, (max(one.bandwidth, one.launch) - one.compute) / per_row + 1),
        "rows": rows,
        "head_share": 1 - flops[0] / flops[1],
        "walking": max(decode.compute, decode.bandwidth) / max(walk.compute, walk.bandwidth),
        "weight_bytes": step_cost(own.program, StepSize(1).work(own.kv_bytes)).weight_bytes,
    }


def _step_sizes(own: Own) -> tuple[StepSize, StepSize]:
    rows = min(_ALL_ROWS, own.chunk, own.system.context - 1)
    return StepSize(rows), StepSize(rows, all_rows=True)


def analyse(
    rows: Sequence[Mapping[str, Any]],
    *,
    predicted: Mapping[str, Any] | None = None,
    rows_wanted: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Any]:
    """Finding, fit and phase ratio of measured rows; what too few rows cannot tell is null."""
    prompts, decodes = measured(rows, "prefill"), measured(rows, "decode")
    try:
        fit = fit_floor_slope(*samples_of(prompts, "tokens"))
    except PhaselineError:  # too few lengths
        fit = None
    walking = predicted["walking"] if predicted else 1.0
    ratio = phase_ratio(prompts, decodes[0], fit.marginal_rate if fit else None, walking=walking) if decodes else None
    wanted = _compare_rows_wanted(predicted, rows_wanted)
    record: dict[str, Any] = {
        "finding": _finding(rows, prompts, fit, ratio, predicted, wanted),
        "results": list(rows),
        "fit": None if fit is None else asdict(fit) | {"marginal_tok_s": fit.marginal_rate},
        "phase_ratio": ratio,
        "rows_wanted": wanted,
    }
    if not prompts:
        errors = [row["error"] for row in rows if row["error"]]
        record["error"] = f"no prompt was read: {next(iter(errors), 'nothing was measured')}"
    return record


def _compare_rows_wanted(
    predicted: Mapping[str, Any] | None, rows_wanted: Mapping[str, Sequence[float]] | None
) -> dict[str, Any] | None:
    if predicted is None or rows_wanted is None or not rows_wanted["all"]:
        return None
    last, every = median(rows_wanted["last"]), median(rows_wanted["all"])
    return {
        "rows": predicted["rows"],
        "last_s": list(rows_wanted["last"]),
        "all_s": list(rows_wanted["all"]),
        "predicted_saving": predicted["head_share"],
        "measured_saving": 1 - last / every,
    }


def _finding(
    rows: Sequence[Mapping[str, Any]],
    prompts: Sequence[Mapping[str, Any]],
    fit: Floor | None,
    ratio: Mapping[str, Any] | None,
    predicted: Mapping[str, Any] | None,
    wanted: Mapping[str, Any] | None,
) -> str:
    if not prompts:
        return "No prompt was read."
    longest = prompts[-1]
    said = [*(_fit_sentences(fit, predicted) if fit else ["Too few lengths for a fit."])]
    said.append(
        f"A prompt of {longest['tokens']} tokens takes {ms(longest['median_s'])}: {rate(longest['tok_s'])} apparent."
    )
    if ratio:
        reading = f"{rate(ratio['prefill_tok_s'])} at {ratio['prefill_tokens']} tokens"
        writing = f"decode's {rate(ratio['decode_tok_s'])} at context {ratio['decode_context']}"
        said.append(f"Phase ratio {ratio['ratio']:.3g} ({reading} over {writing}), {ratio['meaning']}.")
    if wanted:
        said.append(
            f"Wanting the logits of the last of {wanted['rows']} rows instead of all of them leaves out "
            f"{percent(wanted['predicted_saving'])} of the products, most of the LM head; measured, it saves "
            f"{percent(wanted['measured_saving'])} of the time."
        )
    elif predicted is None:
        said.append("Logits of all rows against the last row's: not asked of this system, whose steps are its own.")
    if any(row["cached_tokens"] for row in prompts):
        said.append("A cache served part of some prompts, though all were new: prefill is flattered.")
    errors = [row for row in rows if row["error"]]
    said += [f"{row['tokens']} {row['phase']} tokens could not be measured: {row['error']}." for row in errors]
    return " ".join(said)


def _fit_sentences(fit: Floor, predicted: Mapping[str, Any] | None) -> list[str]:
    least = ms_span(fit.floor_s, fit.floor_interval)
    if fit.knee is None:
        return [f"Up to {fit.sizes[1]:.0f} tokens the time of a prompt does not depend on its length: {least}."]
    more = f"{ms_span(fit.slope_s, fit.slope_interval)}, {rate(1 / fit.slope_s)} marginal"
    if fit.seen:
        said = [
            f"A prompt takes at least {least}: the floor, which ends at {fit.knee:.0f} tokens"
            f"{span(fit.knee_interval)}. Each token beyond costs {more}."
        ]
    else:
        said = [f"No floor is in sight: already the shortest prompt pays for its length. A token costs {more}."]
    if predicted:
        said.append(
            f"From the program and the ceilings, the floor is {ms(predicted['floor_s'])} and ends at "
            f"{predicted['knee']:.0f} tokens, where arithmetic takes as long as reading the weights."
        )
    return said + rough(fit.residual)
