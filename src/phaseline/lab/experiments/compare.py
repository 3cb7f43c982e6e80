"""Systems side by side: the same work, by turns, and where each of them stands in each phase."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.contenders import SETTLE_S, Contender, common_vocabulary, refuse_cached
from phaseline.lab.experiments.base import Progress
from phaseline.lab.prompts import random_asks
from phaseline.lab.standings import Published, Standing, alone, measured_denominator, noise, sentence
from phaseline.lab.stats import interleave, median, spread
from phaseline.lab.systems.base import Ask
from phaseline.lab.trace import Trace

_GREEDY = {"temperature": 0}


@dataclass(frozen=True, slots=True)
class Cell:
    """One system doing one thing: a prompt of `tokens` up to its first token, or as many tokens behind `context`."""

    system: int  # number in the order of the command line
    phase: str
    tokens: int
    context: int

    @property
    def lengths(self) -> tuple[int, int]:
        """Of the prompt, and of the answer."""
        return (self.tokens, 1) if self.phase == "prefill" else (self.context, self.tokens + 1)


@dataclass(slots=True)
class _Samples:
    seconds: list[float | None] = field(default_factory=list)  # one a round
    traces: list[Trace] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Roles:
    """Systems by their numbers. The reference is the first one; `parent` and `again` (the reference once more, for the
    noise) come last and are no systems of their own. `attributions`: the same build with a feature, and without it."""

    systems: int
    subject: int = 0  # of which parent and published figures are the denominators
    parent: int | None = None
    again: int | None = None
    attributions: Sequence[tuple[int, int]] = ()


class Compare:
    """An experiment over several contenders, each of which begins anew in every round, where it can."""

    name = "compare"

    def __init__(
        self,
        contenders: Sequence[Contender],
        roles: Roles,
        *,
        prompts: Sequence[int] = (128, 512),
        context: int = 128,
        tokens: int = 32,
        rounds: int = 9,
        seed: int = 0,
        published: Published | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        if not prompts or min(*prompts, context, tokens, rounds) < 1:
            raise RequestError("prompts, context, tokens and rounds must all be at least 1")
        if not all(one.prompted for one in contenders):
            raise RequestError("a command does work of its own and cannot be compared with systems; guard takes it")
        self._contenders, self._roles, self._published = contenders, roles, published
        self._rounds, self._seed, self._settle_s = rounds, seed, settle_s
        self._lengths, self._context, self._tokens = sorted(set(prompts)), context, tokens
        work = [("prefill", n, 0) for n in self._lengths] + [("decode", tokens, context)]
        self._samples = {Cell(i, *one): _Samples() for one in work for i in range(len(contenders))}
        self._vocabulary = common_vocabulary(contenders)
        self._described: dict[int, Mapping[str, Any]] = {}
        self._asked = 0

    async def run(self, progress: Progress) -> None:
        total = self._rounds * len(self._samples)
        for made, order in enumerate(interleave(list(self._samples), self._rounds, self._seed)):
            failed: dict[int, str] = {}
            try:
                for number in dict.fromkeys(cell.system for cell in order):
                    progress(made * len(order), total, f"{self._name(number)}: starting")
                    try:
                        await self._start(number)
                    except PhaselineError as error:
                        if not made:
                            raise
                        failed[number] = str(error)
                for done, (before, cell) in enumerate(pairwise([None, *order])):
                    assert cell is not None  # only the first one is
                    progress(made * len(order) + done, total, f"{self._name(cell.system)}: {cell.phase}")
                    if before is None or before.system != cell.system:
                        await asyncio.sleep(self._settle_s)
                    await self._sample(cell, failed.get(cell.system))
            finally:
                for contender in self._contenders:
                    await contender.stop()

    def record(self) -> dict[str, Any]:
        standings = [self._standing(number) for number in range(len(self._contenders))]
        reference, others = standings[0], standings[1 : self._roles.systems]
        told = [sentence(one, reference) for one in others] or [alone(reference)]
        failed = sum(len(some.faults) for some in self._samples.values())
        if failed:
            told.append(f"{failed} samples failed and are left out")
        return {
            "finding": ". ".join(told),
            "systems": [
                {"name": self._name(number), **self._described.get(number, {})}
                for number in range(len(self._contenders))
            ],
            "rounds": max((len(some.seconds) for some in self._samples.values()), default=0),
            "seed": self._seed,
            "prompts_of": "token ids" if isinstance(self._vocabulary, range) else "words",
            "results": [self._row(cell) for cell in self._samples],
            "standings": [_row(one, reference) for one in standings[: self._roles.systems]],
            "denominators": self._denominators(standings),
            "noise": None if self._roles.again is None else noise(reference, standings[self._roles.again]),
        }

    async def _start(self, number: int) -> None:
        """Begin a run of a system, described in its first one, and warm it up."""
        contender = self._contenders[number]
        await contender.start()
        if number not in self._described:
            self._described[number] = await contender.describe()
        await contender.serve(self._ask(self._lengths[-1], 8))

    async def _sample(self, cell: Cell, fault: str | None) -> None:
        samples, contender = self._samples[cell], self._contenders[cell.system]
        try:
            if fault:
                raise PhaselineError(fault)
            reading = await contender.serve(self._ask(*cell.lengths))
            refuse_cached(contender.name, reading.trace)
        except PhaselineError as error:
            samples.seconds.append(None)
            samples.faults.append(str(error))
            return
        samples.seconds.append(reading.costs[cell.phase])
        assert reading.trace is not None  # it was prompted
        samples.traces.append(reading.trace)

    def _ask(self, prompt: int, answer: int) -> Ask:
        """No prompt comes twice, for whichever system: one server may be there under two names."""
        self._asked += 1
        words = self._vocabulary
        asks = random_asks(self._asked, prompt, answer, vocabulary=words, seed=self._seed, options=_GREEDY)
        return asks[self._asked - 1]

    def _standing(self, number: int) -> Standing:
        rounds = min(len(some.seconds) for some in self._samples.values())  # an interrupted round is none
        of = {cell: some.seconds[:rounds] for cell, some in self._samples.items() if cell.system == number}
        return Standing(
            self._name(number),
            [(self._read(cell), seconds) for cell, seconds in of.items() if cell.phase == "prefill"],
            next(seconds for cell, seconds in of.items() if cell.phase == "decode"),
            self._context,
        )

    def _read(self, cell: Cell) -> int:
        """Tokens of a cell's prompts as the system counts them; what was asked for, where it does not tell."""
        told = [trace.prompt_tokens for trace in self._samples[cell].traces if trace.prompt_tokens is not None]
        return round(median(told)) if told else cell.lengths[0]

    def _name(self, number: int) -> str:
        name = self._contenders[number].name
        return f"{name} again" if number == self._roles.again else name

    def _row(self, cell: Cell) -> dict[str, Any]:
        samples = self._samples[cell]
        known = [seconds for seconds in samples.seconds if seconds is not None]
        middle = median(known) if known else None
        return {
            "system": self._name(cell.system),
            "phase": cell.phase,
            "mode": None,
            "tokens": cell.tokens,
            "context": cell.context,
            "prompt_tokens": self._read(cell),
            "streams": 1,
            "chunk": None,
            "seconds": samples.seconds,
            "median_s": middle,
            "spread_s": spread(known) if known else None,
            "tok_s": None if middle is None else (self._read(cell) if cell.phase == "prefill" else 1) / middle,
            "faults": samples.faults,
            "traces": [trace.to_dict() for trace in samples.traces],
        }

    def _denominators(self, standings: Sequence[Standing]) -> list[dict[str, Any]]:
        roles, today = self._roles, datetime.now(UTC).date()
        rows = [measured_denominator("attribution", standings[a], standings[b], today) for a, b in roles.attributions]
        if roles.parent is not None:
            rows.append(measured_denominator("parent", standings[roles.subject], standings[roles.parent], today))
        if self._published is not None:
            rows.append(self._published.denominator(standings[roles.subject], today))
        return rows


def _row(standing: Standing, reference: Standing) -> dict[str, Any]:
    ratios = {f"{phase}_of_reference": standing.against(reference, phase) for phase in ("prefill", "decode")}
    worst = standing.worst(reference)
    return {
        "system": standing.name,
        "prefill_tokens": standing.length,
        "prefill_tok_s": standing.prefill_tok_s,
        "marginal_tok_s": standing.marginal_tok_s,
        "decode_context": standing.context,
        "decode_tok_s": standing.decode_tok_s,
        "phase_ratio": (own := standing.phase_ratio) and own.to_dict(),
        **{name: ratio and ratio.to_dict() for name, ratio in ratios.items()},
        "worst_phase": worst and worst[0],
        "worst_ratio": worst and worst[1].to_dict(),
    }
