"""Whole requests over a grid of prompt and output lengths: what each phase takes of them, and which one dominates."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from phaseline.errors import RequestError
from phaseline.lab.drive import follow
from phaseline.lab.experiments.base import Progress
from phaseline.lab.metrics import TraceMetrics, phase_share, trace_metrics
from phaseline.lab.prompts import WORDS, Vocabulary, random_asks
from phaseline.lab.stats import interleave, median
from phaseline.lab.summary import Objectives
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.trace import Trace

DOMINANT = 0.6  # a phase with at least this share of the time dominates; with less, both phases count


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Lengths in tokens: of the prompt, as asked for, and of the answer."""

    prompt: int
    output: int


class EndToEnd:
    """Each cell once a round, in a random order, one stream at a time, every prompt a new one."""

    name = "endtoend"

    def __init__(
        self,
        system: StreamSystem,
        prompts: Sequence[int],
        outputs: Sequence[int],
        *,
        repeats: int = 5,
        vocabulary: Vocabulary = WORDS,
        objectives: Objectives | None = None,
        ignore_eos: bool = True,
        seed: int = 0,
    ) -> None:
        if repeats < 1 or not prompts or not outputs:
            raise RequestError(f"{len(prompts)} x {len(outputs)} lengths, {repeats} repeats: at least one of each")
        self._system, self._objectives, self._repeats, self._seed = system, objectives, repeats, seed
        self._cells = sorted({Cell(prompt, output) for prompt in prompts for output in outputs})
        self._samples: dict[Cell, list[Trace]] = {cell: [] for cell in self._cells}
        # All lists are numbered alike: no number is used twice, so all prompts begin differently.
        total = (repeats + 1) * len(self._cells)
        self._asks = {
            cell: random_asks(total, cell.prompt, cell.output, vocabulary=vocabulary, seed=seed, ignore_eos=ignore_eos)
            for cell in self._cells
        }

    async def run(self, progress: Progress) -> None:
        total = self._repeats * len(self._cells)
        for number, cell in enumerate(self._cells):  # warm-up, not recorded
            progress(0, total, f"warm-up: {cell.prompt} + {cell.output} tokens")
            await follow(self._system, self._asks[cell][total + number])
        for number, cell in enumerate(chain.from_iterable(interleave(self._cells, self._repeats, self._seed))):
            progress(number, total, f"{cell.prompt} + {cell.output} tokens")
            self._samples[cell].append(await follow(self._system, self._asks[cell][number]))
        progress(total, total, "done")

    def record(self) -> dict[str, Any]:
        return analyse(self._samples, self._objectives)


def analyse(samples: Mapping[Cell, Sequence[Trace]], objectives: Objectives | None = None) -> dict[str, Any]:
    """Finding and table of the traces of each cell; cells without any are left out.

    A row's times are medians over its traces, `worst_gap_s` is the largest gap of all. `balance` tells for each prompt
    length after how many output tokens decode has taken as long as the first token: TTFT / TPOT.
    """
    rows = [_row(cell, traces, objectives) for cell, traces in samples.items() if traces]
    balance = [found for prompt in sorted({row["prompt"] for row in rows}) if (found := _balance(prompt, rows))]
    attempted = [objectives.met(trace_metrics(t)) for traces in samples.values() for t in traces] if objectives else []
    errors = Counter(trace.error for traces in samples.values() for trace in traces if trace.error is not None)
    attainment = sum(attempted) / len(attempted) if attempted else None
    record: dict[str, Any] = {
        "finding": _finding(rows, balance, attainment, errors),
        "results": rows,
        "balance": balance,
        "slo_attainment": attainment,
    }
    if rows and all(row["ttft_s"] is None for row in rows):
        record["error"] = f"no request brought a token: {next(iter(errors), 'the answers were empty')}"
    return record


def _row(cell: Cell, traces: Sequence[Trace], objectives: Objectives | None) -> dict[str, Any]:
    metrics = [trace_metrics(trace) for trace in traces]
    done = [one for one in metrics if one.ttft is not None]
    shares = [phase_share(one).prefill for one in done if one.gaps or one.tokens == 1]
    share = _median(shares)
    gaps = [one.worst_gap for one in done if one.worst_gap is not None]
    return {
        "phase": "mixed",
        "tokens": cell.prompt + cell.output,
        "prompt": cell.prompt,
        "output": cell.output,
        "streams": 1,
        "samples": len(traces),
        "failed": len(traces) - len(done),
        "prompt_tokens": _median([t.prompt_tokens for t in traces]),
        "cached_tokens": _median([t.cached_tokens for t in traces]),
        "output_tokens": _median([one.tokens for one in done]),
        "seconds": [one.e2e for one in done],
        "ttft_s": _median([one.ttft for one in done]),
        "tpot_s": _median([one.tpot for one in done]),
        "e2e_s": _median([one.e2e for one in done]),
        "median_gap_s": _median([gap for one in done for gap in one.gaps]),
        "worst_gap_s": max(gaps, default=None),
        "prefill_share": share,
        "decode_share": None if share is None else 1 - share,
        "dominant": dominant(share),
        "queue_s": _median([_queue(trace, one) for trace, one in zip(traces, metrics, strict=True)]),
        "slo_attainment": objectives and sum(objectives.met(one) for one in metrics) / len(metrics),
        "traces": [trace.to_dict() for trace in traces],
    }


def dominant(prefill_share: float | None) -> str:
    """The phase that takes at least DOMINANT of the time: prefill, decode or neither; unknown without a share."""
    if prefill_share is None:
        return "unknown"
    return "prefill" if prefill_share >= DOMINANT else "decode" if prefill_share <= 1 - DOMINANT else "neither"


def _queue(trace: Trace, one: TraceMetrics) -> float | None:
    """TTFT beyond the prefill that the server reports: queueing, the network, and choosing the first token."""
    reported = (trace.timings or {}).get("prompt_ms")
    return None if one.ttft is None or not isinstance(reported, int | float) else one.ttft - reported / 1000


def _balance(prompt: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """From the longest answers to the prompt whose TPOT is known: theirs is the steadiest."""
    timed = [row for row in rows if row["prompt"] == prompt and row["tpot_s"]]
    if not timed:
        return None
    row = max(timed, key=lambda row: row["output"])
    return {"prompt": prompt, "output_tokens": row["ttft_s"] / row["tpot_s"]}


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _finding(
    rows: Sequence[Mapping[str, Any]],
    balance: Sequence[Mapping[str, Any]],
    attainment: float | None,
    errors: Counter[str],
) -> str:
    if not rows:
        return "Nothing was measured."
    counted = Counter(row["dominant"] for row in rows)
    told = [_named(phase, rows) for phase in ("decode", "prefill") if counted[phase]]
    if counted["neither"]:
        told.append(f"in {counted['neither']} of {len(rows)} cells neither phase has {DOMINANT:.0%} of the time")
    if counted["unknown"]:
        told.append(f"in {counted['unknown']} of {len(rows)} cells the phases cannot be told apart")
    sentences = [_sentence("; ".join(told))]
    if balance:
        pairs = ", ".join(f"{one['output_tokens']:.0f} (prompt {one['prompt']})" for one in balance)
        sentences.append(f"Output tokens after which decode has taken as long as the first token: {pairs}.")
    if attainment is not None:
        sentences.append(f"{attainment:.0%} of the requests met the objectives.")
    attempted = sum(row["samples"] for row in rows)
    sentences += [f"{count} of {attempted} requests failed: {error}." for error, count in errors.most_common(3)]
    cached = [row["cached_tokens"] for row in rows if row["cached_tokens"]]
    if cached:
        sentences.append(
            f"In {len(cached)} of {len(rows)} cells a cache held up to {max(cached):.0f} tokens of the prompts, though "
            "all differ: a chat template, or an earlier run. Prefill is flattered by them."
        )
    return " ".join(sentences)


def _named(phase: str, rows: Sequence[Mapping[str, Any]]) -> str:
    mine = [row for row in rows if row["dominant"] == phase]
    most = max(mine, key=lambda row: row[f"{phase}_share"])
    cells = f"{phase} dominates {len(mine)} of {len(rows)} cells"
    return f"{cells}, most of all {most['prompt']} + {most['output']} tokens ({most[f'{phase}_share']:.0%} of the time)"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
