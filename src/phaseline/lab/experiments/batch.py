"""Decode over streams: which part of a step batching amortises, and which comes anew with each stream."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.own import Own
from phaseline.lab.experiments.sweep import Sweep, cell_row, decode_cell, measured, samples_of
from phaseline.lab.fit import Line, fit_line
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.wording import ms, ms_span, percent, rate, rough
from phaseline.program.cost import decode_work

STREAMS = (1, 2, 4, 8, 16)


class Batch:
    """Step time of streams that decode together around one context."""

    name = "batch"

    def __init__(
        self,
        system: StreamSystem,
        streams: Sequence[int] = STREAMS,
        *,
        context: int = 256,
        rounds: int | None = None,
        vocabulary: Vocabulary = WORDS,
        seed: int = 0,
        own: Own | None = None,
    ) -> None:
        if not streams or context < 1:
            raise RequestError(f"{len(streams)} numbers of streams at context {context}: at least one of each")
        self._own = own
        cells = [decode_cell(context, n) for n in sorted({1, *streams})]
        self._sweep = Sweep({"": system}, cells, rounds=rounds, vocabulary=vocabulary, seed=seed)

    async def run(self, progress: Progress) -> None:
        if self._own is None:
            await self._sweep.run(progress)
            return
        self._own.expect([work for cell in self._sweep.samples for work in self._own.steps(cell)])
        await self._sweep.run(progress, self._own.observe)

    def record(self) -> dict[str, Any]:
        rows = [_per_stream(cell_row(cell, rounds)) for cell, rounds in self._sweep.samples.items()]
        if self._own is None or not self._sweep.rounds:
            return analyse(rows)
        cells = list(self._sweep.samples)
        predicted = predict(self._own, cells[0].context)
        rows = [
            self._own.priced(cell, row) | {"predicted_s": predicted_step(predicted, cell.streams)}
            for cell, row in zip(cells, rows, strict=True)
        ]
        return analyse(rows, predicted) | {"ceilings": self._own.ceilings.record(), "predicted": predicted}


def predict(own: Own, context: int) -> dict[str, Any]:
    """Parts of a decode step, from the program and the ceilings: the weights, read once for all streams, and each
    stream's state and arithmetic.

    The step is state + max(arithmetic, weights), and never below the launch floor.
    """
    one = own.bounds([decode_work(context, kv_bytes=own.kv_bytes)])
    share = one.cost.weight_bytes / one.cost.bytes
    weights_s, state_s = one.bandwidth * share, one.bandwidth * (1 - share)
    return {
        "weights_s": weights_s,
        "state_s": state_s,
        "compute_s": one.compute,
        "launch_s": one.launch,
        "weight_bytes": one.cost.weight_bytes,
        "state_bytes": one.cost.state_bytes,
        "critical_streams": weights_s / one.compute,
    }


def predicted_step(predicted: Mapping[str, Any], streams: int) -> float:
    """Least seconds of a step of so many streams."""
    products = max(streams * predicted["compute_s"], predicted["weights_s"])
    return float(max(predicted["launch_s"], streams * predicted["state_s"] + products))


def analyse(rows: Sequence[Mapping[str, Any]], predicted: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Finding, and the line step = shared + streams * own through the rows; what too few rows cannot tell is null."""
    known = measured(rows, "decode")
    try:
        line = fit_line(*samples_of(known, "streams"))
    except PhaselineError:  # too few numbers of streams
        line = None
    record: dict[str, Any] = {
        "finding": _finding(rows, known, line, predicted),
        "results": list(rows),
        "fit": None if line is None else asdict(line) | {"shared_s": line.base_s, "own_s": line.slope_s},
    }
    if not known:
        errors = [row["error"] for row in rows if row["error"]]
        record["error"] = f"no step time is known: {next(iter(errors), 'no answer had tokens to count')}"
    return record


def _per_stream(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"stream_tok_s": row["tok_s"] / row["streams"] if row["tok_s"] else None}


def _finding(
    rows: Sequence[Mapping[str, Any]],
    known: Sequence[Mapping[str, Any]],
    line: Line | None,
    predicted: Mapping[str, Any] | None,
) -> str:
    if not known:
        return "No step time is known of this system."
    alone, most = known[0], known[-1]
    said = [f"One stream at context {alone['context']} gets {rate(alone['tok_s'])}."]
    if most["streams"] > alone["streams"]:
        gain, kept = most["tok_s"] / alone["tok_s"], most["stream_tok_s"] / alone["tok_s"]
        said.append(
            f"{most['streams']} streams get {rate(most['tok_s'])} together, {gain:.2f} times as much, and "
            f"{rate(most['stream_tok_s'])} each, {percent(kept)} of what one gets alone."
        )
    if line:
        said += _split_sentences(line, most["streams"], predicted)
    waited = [row["streams"] for row in rows if row["queued"]]
    if waited:
        why = "fewer run at once, or prompts are read slowly"
        said.append(f"With {waited[0]} streams some began only when others had ended: {why}.")
    errors = [row for row in rows if row["error"]]
    said += [f"{row['streams']} streams could not be measured: {row['error']}." for row in errors]
    return " ".join(said)


def _split_sentences(line: Line, most: int, predicted: Mapping[str, Any] | None) -> list[str]:
    shared, own = ms_span(line.base_s, line.base_interval), ms_span(line.slope_s, line.slope_interval)
    if line.slope_s <= 0:
        said = [f"A step takes {shared} whatever the number of streams, up to {most}: all of it is amortised."]
    elif line.base_interval is not None and line.base_interval[0] <= 0.1 * line.slope_s < line.base_interval[1]:
        said = [f"Each stream costs {own}. Whether anything is shared cannot be told from the noise: {shared}."]
    elif line.base_s <= 0.1 * line.slope_s:
        said = [f"Each stream costs {own}, and next to nothing is shared: batching gains nothing here."]
    else:
        said = [
            f"Of a step, {shared} are shared by all streams, which batching amortises, and {own} come anew with each, "
            f"which it cannot: however many streams, they get no more than {rate(1 / line.slope_s)} together."
        ]
    said += rough(line.residual)
    if predicted is None:
        return [*said, "What the shared and the own part consist of cannot be seen from outside."]
    critical = predicted["critical_streams"]
    said.append(
        f"At the ceilings, reading the weights ({predicted['weight_bytes'] / 1e6:.3g} MB) would take "
        f"{ms(predicted['weights_s'])} once; each stream's keys and values "
        f"({predicted['state_bytes'] / 1e6:.3g} MB) {ms(predicted['state_s'])} and its arithmetic "
        f"{ms(predicted['compute_s'])}, which hides behind the weights up to {critical:.1f} streams."
    )
    return said
