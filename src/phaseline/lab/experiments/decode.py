"""Decode over contexts: the cost of a token and of each stored position, and, for our engine, what else changes it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from phaseline.bounds import flop_rate
from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.own import Own
from phaseline.lab.experiments.sweep import Sweep, cell_row, decode_cell, measured, samples_of
from phaseline.lab.fit import Line, fit_line
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.wording import ms, ms_span, percent, rate, rough
from phaseline.program.cost import decode_work, op_costs, step_cost

CONTEXTS = (64, 256, 512, 1024, 2000)


class Decode:
    """TPOT of one stream around several contexts. `variants`: the same engine loaded otherwise, by what is different of
    it, each measured at the smallest context; `owns` price them and, under "", the system itself.
    """

    name = "decode"

    def __init__(
        self,
        system: StreamSystem,
        contexts: Sequence[int] = CONTEXTS,
        *,
        variants: Mapping[str, StreamSystem] | None = None,
        owns: Mapping[str, Own] | None = None,
        rounds: int | None = None,
        vocabulary: Vocabulary = WORDS,
        seed: int = 0,
    ) -> None:
        if not contexts:
            raise RequestError("no contexts: give at least one")
        systems = {"": system, **(variants or {})}
        cells = [decode_cell(context) for context in sorted(set(contexts))]
        cells += [decode_cell(min(contexts), system=name) for name in systems if name]
        self._owns = owns or {}
        self._sweep = Sweep(systems, cells, rounds=rounds, vocabulary=vocabulary, seed=seed)

    async def run(self, progress: Progress) -> None:
        own = self._owns.get("")
        if own is None:
            await self._sweep.run(progress)
            return
        own.expect([work for cell in self._sweep.samples for work in self._owns[cell.system].steps(cell)])
        await self._sweep.run(progress, own.observe)

    def record(self) -> dict[str, Any]:
        rows = [cell_row(cell, rounds) for cell, rounds in self._sweep.samples.items()]
        own = self._owns.get("")
        if own is None or not self._sweep.rounds:
            return analyse(rows)
        for each in self._owns.values():
            each.share_ceilings(own)
        cells = list(self._sweep.samples)
        rows = [self._owns[cell.system].priced(cell, row) for cell, row in zip(cells, rows, strict=True)]
        predicted = predict(own, max(cell.context for cell in cells))
        return analyse(rows, predicted) | {"ceilings": own.ceilings.record(), "predicted": predicted}


def predict(own: Own, context: int) -> dict[str, Any]:
    """From the program and the ceilings: what a position adds to a step, by reading its state and by arithmetic."""
    shorter, longer = decode_work(0, kv_bytes=own.kv_bytes), decode_work(context, kv_bytes=own.kv_bytes)
    reading = own.ceilings.read_at(step_cost(own.program, longer).bytes)
    pairs = zip(own.program.ops, op_costs(own.program, shorter), op_costs(own.program, longer), strict=True)
    added = [(op, (b.flops - a.flops) / context, (b.bytes - a.bytes) / context) for op, a, b in pairs]
    state = sum(size for _, _, size in added)
    arithmetic = sum(flops / flop_rate(op, own.ceilings) for op, flops, _ in added)
    return {
        "position_bytes": state,
        "read_s": state / reading,
        "compute_s": arithmetic,
        "slope_s": max(state / reading, arithmetic),
    }


def analyse(rows: Sequence[Mapping[str, Any]], predicted: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Finding, line over contexts, and how each variant differs; what too few rows cannot tell is null."""
    base = measured(rows, "decode")
    try:
        line = fit_line(*samples_of(base, "context"))
    except PhaselineError:  # too few contexts
        line = None
    variants = [_against(base[0], row) for row in rows if base and row["system"] and row["median_s"]]
    record: dict[str, Any] = {
        "finding": _finding(rows, base, line, predicted, variants),
        "results": list(rows),
        "fit": None if line is None else asdict(line),
        "variants": variants,
    }
    if not base:
        errors = [row["error"] for row in rows if row["error"]]
        record["error"] = f"no TPOT is known: {next(iter(errors), 'no answer had tokens to count')}"
    return record


def _against(base: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    priced = "bytes" in base
    return {
        "variant": row["system"],
        "context": row["context"],
        "time_ratio": row["median_s"] / base["median_s"],
        "bytes_ratio": row["bytes"] / base["bytes"] if priced else None,
    }


def _finding(
    rows: Sequence[Mapping[str, Any]],
    base: Sequence[Mapping[str, Any]],
    line: Line | None,
    predicted: Mapping[str, Any] | None,
    variants: Sequence[Mapping[str, Any]],
) -> str:
    if not base:
        return "No TPOT is known of this system."
    said = [f"A token takes {', '.join(_at(row) for row in (base[0], *base[1:][-1:]))}."]
    if line:
        said += _slope_sentences(line, predicted)
    if predicted and base[0]["fraction"] is not None:
        row = base[0]
        named = f"the tightest ceiling explains {row['fraction']:.0%} of it"
        told = f"suggests {row['limit']}" if row["limit"] != "unknown" else "names no limit"
        said.append(f"At context {row['context']} {named}, which {told} (`lab regime` tells more).")
    for one in variants:
        size = "" if one["bytes_ratio"] is None else f"{one['bytes_ratio']:.2f} times the bytes, "
        said.append(f"With {one['variant']}: {size}{one['time_ratio']:.2f} times the time.")
    errors = [row for row in rows if row["error"]]
    said += [f"Context {row['context']} could not be measured: {row['error']}." for row in errors]
    return " ".join(said)


def _at(row: Mapping[str, Any]) -> str:
    return f"{ms(row['median_s'])} at context {row['context']} ({rate(row['tok_s'])})"


def _slope_sentences(line: Line, predicted: Mapping[str, Any] | None) -> list[str]:
    thousand = None if line.slope_interval is None else (1e3 * line.slope_interval[0], 1e3 * line.slope_interval[1])
    grows = line.slope_s > 0 and (line.slope_interval is None or line.slope_interval[0] > 0)
    if not grows:
        said = ["No growth with the context stands out of the noise."]
    else:
        said = [f"Each thousand positions more add {ms_span(1e3 * line.slope_s, thousand)} to a token."]
    if predicted:
        amount = f"{predicted['position_bytes'] / 1e3:.3g} MB"
        said.append(
            f"Reading their keys and values ({amount} a thousand) at the ceiling would take "
            f"{ms(1e3 * predicted['read_s'])}, their arithmetic {ms(1e3 * predicted['compute_s'])}"
            + (f": {percent(predicted['slope_s'] / line.slope_s)} of that." if grows else ".")
        )
    return said + rough(line.residual)
