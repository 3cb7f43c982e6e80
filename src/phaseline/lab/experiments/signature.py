"""The limits of a system that is seen from outside only: how its times scale. Every claim is inferred, or "unknown"."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.claims import Claim
from phaseline.lab.experiments.base import Progress
from phaseline.lab.experiments.sweep import Sweep, cell_row, decode_cell, measured, prefill_cell, samples_of
from phaseline.lab.fit import Line, fit_line
from phaseline.lab.phase_ratio import ABOUT_ONE, phase_ratio
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import StreamSystem
from phaseline.lab.wording import ms, percent

FLAT, LINEAR = 0.35, 0.65  # exponents of time over size: no more than the first is flat, no less than the second linear
_NOISE = 0.2  # median deviation as a share of the time, or of a line's misses: with more of it nothing is claimed
_SLOW = 2.0  # times what reading the prompts one after the other takes: a wait beyond it has another reason
_SHARED = "launching and reading the weights look alike from outside"

Row = Mapping[str, Any]


class Signature:
    """Prompts of rising length, and decode over contexts and numbers of streams."""

    name = "regime"

    def __init__(
        self,
        system: StreamSystem,
        *,
        tokens: int = 512,
        context: int = 512,
        streams: Sequence[int] = (1, 8),
        rounds: int | None = None,
        vocabulary: Vocabulary = WORDS,
        seed: int = 0,
    ) -> None:
        if min(tokens, context, *streams) < 1:
            raise RequestError(f"sizes {tokens}, {context}, {list(streams)}: at least 1 of each")
        cells = [prefill_cell(n) for n in sorted({max(1, tokens // part) for part in (4, 2, 1)})]
        cells += [decode_cell(max(1, context // 4))] if context > 1 else []
        cells += [decode_cell(context, n) for n in sorted({1, 2, *streams})]
        self._sweep = Sweep({"": system}, cells, rounds=rounds, vocabulary=vocabulary, seed=seed)
        self._streams = sorted(set(streams))

    async def run(self, progress: Progress) -> None:
        await self._sweep.run(progress)

    def record(self) -> dict[str, Any]:
        return analyse([cell_row(cell, rounds) for cell, rounds in self._sweep.samples.items()], self._streams)


def analyse(rows: Sequence[Row], streams: Sequence[int]) -> dict[str, Any]:
    """Claims on the longest prompt, and on decode of these numbers of streams at the longest context."""
    prompts, decodes = measured(rows, "prefill"), measured(rows, "decode")
    context = max((row["context"] for row in decodes), default=0)
    together = [row for row in decodes if row["context"] == context]
    alone = [row for row in decodes if row["streams"] == 1]
    ratio = phase_ratio(prompts, alone[-1], None, near=prompts[-1]["tokens"]) if prompts and alone else None
    claimed = []
    if prompts:
        label = f"prefill of {prompts[-1]['tokens']} tokens"
        claimed.append((label, prompts[-1], judge_prefill(prompts, ratio)))
    by_streams, by_context = _line(together, "streams"), _line(alone, "context")
    waited = {row["streams"] for row in rows if row["queued"]}
    for row in (row for row in rows if row["phase"] == "decode" and row["context"] == context):
        if row["streams"] in streams and (row in together or row["streams"] in waited):
            label = f"decode of {row['streams']} stream{'s' * (row['streams'] > 1)} at context {row['context']}"
            claimed.append((label, row, judge_decode(row, alone[-1] if alone else None, by_streams, by_context)))
    results = [{"label": label, **row, **claim.record()} for label, row, claim in claimed]
    record = {
        "finding": " ".join(_sentence(row) for row in results) or "Nothing was measured.",
        "results": results,
        "phase_ratio": ratio,
        "signature": list(rows),
    }
    if not results:
        errors = [row["error"] for row in rows if row["error"]]
        record["error"] = f"no time is known of this system: {next(iter(errors), 'nothing was measured')}"
    return record


def judge_prefill(prompts: Sequence[Row], ratio: Mapping[str, Any] | None) -> Claim:
    """From how the time of a prompt grows with its length, and the phase ratio."""
    if len(prompts) < 2:
        return _claim("unknown", "one length alone shows no scaling")
    if noise := _noise(prompts[-2:]):
        return _claim("unknown", noise)
    (shorter, longer), seconds = prompts[-2:], [row["median_s"] for row in prompts[-2:]]
    growth = math.log(seconds[1] / seconds[0]) / math.log(longer["tokens"] / shorter["tokens"])
    seen = (
        f"{longer['tokens'] / shorter['tokens']:.3g} times the tokens take {seconds[1] / seconds[0]:.2f} times the time"
    )
    if growth <= FLAT:
        return _claim("unknown", seen, f"so arithmetic is not the limit; {_SHARED}")
    if ratio is None:
        return _claim("unknown", seen, "without a decode to hold it against, that says little")
    told = f"the phase ratio is {ratio['ratio']:.2f}, {ratio['meaning']}"
    if ratio["ratio"] < ABOUT_ONE:
        return _claim("unknown", seen, told, "each token of a prompt is limited by what limits decode")
    if growth < LINEAR:
        return _claim("unknown", seen, told, "so part of the time is a floor, and part grows: neither rules")
    return _claim("compute", seen, told, "what grows with the rows that share a step is arithmetic")


def judge_decode(row: Row, alone: Row | None, by_streams: Line | None, by_context: Line | None) -> Claim:
    """From the parts of a step: shared by all streams, and each stream's own, of which some grows with its context.

    `alone`: one stream. Streams that waited for others' ends lacked room, unless reading all prompts takes as long.
    """
    if row["queued"]:
        seen = "some streams began only when others had ended"
        if alone is None or row["last_ttft_s"] <= _SLOW * row["streams"] * alone["last_ttft_s"]:
            return _claim("unknown", seen, "but reading all prompts, one after the other, may take as long")
        return _claim(
            "capacity", seen, "and reading the prompts does not take so long: there is no room for all at once"
        )
    if by_streams is None:
        return _claim("unknown", "one number of streams alone shows no scaling")
    if noise := _noise([row], by_streams):
        return _claim("unknown", noise)
    step, shared = by_streams.seconds(row["streams"]), max(0.0, by_streams.base_s)
    own = 1 - shared / step
    seen = f"of a step, {ms(shared)} are shared by all streams and {ms(by_streams.slope_s)} come with each"
    if own < 0.5:
        return _claim("unknown", seen, f"so neither arithmetic nor state is the limit; {_SHARED}")
    if row["streams"] == 1:
        told = "streams share next to nothing: this system does not batch them, or arithmetic is the limit"
        return _claim("unknown", seen, told)
    if by_context is None or _noise([], by_context):
        return _claim(
            "unknown",
            seen,
            "without steady times at a second context it cannot be told whether that is state or arithmetic",
        )
    state = max(0.0, by_context.slope_s) * row["context"] / by_streams.slope_s
    told = f"{percent(min(1.0, state))} of what comes with each grows with its context"
    if state >= 0.5:
        return _claim("bandwidth", seen, told, "reading state is limited by bandwidth, whatever the batch")
    return _claim("compute", seen, told, "the rest is arithmetic, if streams do run together")


def _noise(rows: Sequence[Row], line: Line | None = None) -> str | None:
    """Why nothing can be read from these times, if so."""
    most = max((row["spread_s"] / row["median_s"] for row in rows), default=0.0)
    if most > _NOISE:
        return f"times vary by {percent(most)} between rounds: too noisy to tell"
    if line is not None and line.residual > _NOISE:
        return f"times miss a straight line by {percent(line.residual)}: too noisy to tell, or not of that form"
    return None


def _claim(limit: str, *evidence: str) -> Claim:
    return Claim(limit, None, limit != "unknown", evidence)


def _line(rows: Sequence[Row], size: str) -> Line | None:
    try:
        return fit_line(*samples_of(rows, size))
    except PhaselineError:  # too few sizes
        return None


def _sentence(row: Row) -> str:
    what = row["label"][:1].upper() + row["label"][1:]
    sure = " (inferred)" if row["inferred"] else ""
    return f"{what}: {row['limit']}{sure}; {'; '.join(row['evidence'])}."
