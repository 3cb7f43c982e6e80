"""The guard: is the head slower than its base, in either phase? Correctness first; noise is measured, not guessed.

A replicate is a run of every contender, the order drawn by lot, new processes where they have any. In it each serves
some asks, one at a time and by turns; their geometric mean counts. `guard_stats` says when there are enough replicates.
"""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phaseline.errors import PhaselineError
from phaseline.lab.contenders import PHASES, SETTLE_S, Answer, Contender, Reading, common_vocabulary, refuse_cached
from phaseline.lab.experiments.base import Progress
from phaseline.lab.guard_floors import LEAST_FLOOR
from phaseline.lab.guard_stats import Comparison, Finding, Rules, Verdict, decided, look, loss
from phaseline.lab.prompts import random_asks
from phaseline.lab.stats import median
from phaseline.lab.systems.base import Ask

_GREEDY = {"temperature": 0}
_ANSWER_PROMPTS, _ANSWER_TOKENS = (8, 40, 150), 24  # words of each prompt, tokens of each answer
_NOISE_RISK = 0.005  # that the truth lies beyond one end of the interval of an A/A comparison


@dataclass(frozen=True, slots=True)
class Work:
    """What a contender does in one replicate: `asks` streams, one after the other, of so many tokens each.

    `answers`: in each replicate it first continues a few texts greedily, which also warms it up, and all contenders
    must say the same. `settle_s`: the rest before each turn.
    """

    prompt_tokens: int = 256
    output_tokens: int = 33
    asks: int = 3
    answers: bool = True
    seed: int = 0
    settle_s: float = SETTLE_S


class Different(PhaselineError):
    """Two contenders gave different answers to the same prompt."""


@dataclass(slots=True)
class Run:
    """One contender's share of a replicate."""

    readings: list[Reading] = field(default_factory=list)

    def cost(self, phase: str) -> float:
        """Seconds, the geometric mean of its asks."""
        return math.exp(sum(math.log(reading.costs[phase]) for reading in self.readings) / len(self.readings))

    def to_dict(self) -> dict[str, Any]:
        """Costs of every ask by phase, and the raw traces where there are any."""
        traces = [reading.trace.to_dict() for reading in self.readings if reading.trace is not None]
        costs = {phase: [reading.costs[phase] for reading in self.readings] for phase in PHASES}
        return costs | {"traces": traces}


class Replicates:
    """Runs contenders against each other, and keeps what came. Needs at least two, by their roles."""

    def __init__(self, contenders: Mapping[str, Contender], work: Work) -> None:
        self.contenders, self.work = contenders, work
        self.made: list[dict[str, Run]] = []
        self.systems: dict[str, Mapping[str, Any]] = {}
        self._lots = random.Random(work.seed)
        self._answers: dict[int, tuple[str, Answer]] = {}
        self._texts = [
            random_asks(1, words, _ANSWER_TOKENS, seed=words, options=_GREEDY)[0] for words in _ANSWER_PROMPTS
        ]
        self._asks: Sequence[Ask] = ()
        if any(one.prompted for one in contenders.values()):
            self._asks = random_asks(
                1 << 20,
                work.prompt_tokens,
                work.output_tokens,
                vocabulary=common_vocabulary(list(contenders.values())),
                seed=work.seed,
                options=_GREEDY,
            )
        self._asked = 0

    async def add(self) -> None:
        """One more replicate. Raises Different, or PhaselineError if a contender fails."""
        made: dict[str, Run] = {role: Run() for role in self.contenders}
        running: list[Contender] = []
        try:
            for role in self._order():
                contender = self.contenders[role]
                running.append(contender)
                await contender.start()
                if role not in self.systems:
                    self.systems[role] = {"name": contender.name, **await contender.describe()}
                await self._warm_up(role)
            for _ in range(self.work.asks):
                for role in self._order():
                    await asyncio.sleep(self.work.settle_s)
                    reading = await self.contenders[role].serve(self._next_ask())
                    refuse_cached(self.contenders[role].name, reading.trace)
                    if not self.contenders[role].prompted and reading.answer is not None and self.work.answers:
                        self._compare(role, -1, reading.answer)
                    made[role].readings.append(reading)
        finally:
            for contender in running:
                await contender.stop()
        if self.work.answers and not self._answers:
            raise PhaselineError(
                "nothing says what was answered, so that correctness cannot be checked: let the commands print "
                "token_ids, as `phaseline run --json` does, or compare speed alone (--no-answers)"
            )
        self.made.append(made)

    def log_ratios(self, phase: str, role: str, reference: str) -> list[float]:
        """Of each replicate: the logarithm of one contender's time over another's."""
        return [math.log(made[role].cost(phase) / made[reference].cost(phase)) for made in self.made]

    def record(self) -> dict[str, Any]:
        """What was done, by whom, and all that was seen."""
        return {
            "systems": self.systems,
            "work": {name: getattr(self.work, name) for name in Work.__slots__},
            "replicates": [{role: run.to_dict() for role, run in made.items()} for made in self.made],
        }

    def _order(self) -> list[str]:
        roles = list(self.contenders)
        self._lots.shuffle(roles)
        return roles

    def _next_ask(self) -> Ask:
        """Prompts are never used twice: a server must not know them."""
        self._asked += 1
        return self._asks[self._asked - 1] if self._asks else Ask("", self.work.output_tokens)

    async def _warm_up(self, role: str) -> None:
        contender = self.contenders[role]
        if not contender.prompted:
            return
        every = not self.made and self.work.answers  # all of them once, then one each time
        numbers = range(len(self._texts)) if every else [len(self.made) % len(self._texts)]
        for number in numbers:
            reading = await contender.serve(self._texts[number])
            if self.work.answers and reading.answer is not None:
                self._compare(role, number, reading.answer)

    def _compare(self, role: str, number: int, answer: Answer) -> None:
        other, first = self._answers.setdefault(number, (role, answer))
        if first == answer:
            return
        at = next(
            (i for i, (a, b) in enumerate(zip(first, answer, strict=False)) if a != b), min(map(len, (first, answer)))
        )
        unit = "character" if isinstance(answer, str) else "token"
        prompt = "its own prompt" if number < 0 else f"prompt {number + 1} of {len(self._texts)}"
        who = f"{role} answers differently each time" if other == role else f"{role} does not answer as {other} does"
        raise Different(
            f"{who}: {prompt}, from {unit} {at + 1} on: {answer[at : at + 12]!r} after {first[at : at + 12]!r}"
        )


class Check:
    """Head against base, and against the anchor if there is one. An experiment; `status` is the guard's exit status.

    A contender in the role "again" is the base once more: what seems to separate these two is noise, and raises the
    floors where it is larger than they are.
    """

    name = "guard"
    PASSED, SLOWER, DIFFERENT, UNKNOWN = 0, 1, 3, 4

    def __init__(self, replicates: Replicates, floors: Mapping[str, float], rules: Rules) -> None:
        self._replicates, self._floors, self._rules = replicates, floors, rules
        self._references = [role for role in ("base", "anchor") if role in replicates.contenders]
        self._different: str | None = None
        self.findings: list[Finding] = []

    async def run(self, progress: Progress) -> None:
        looks = self._rules.looks
        for number in range(1, looks[-1] + 1):
            progress(number - 1, next(n for n in looks if n >= number), self._state())
            try:
                await self._replicates.add()
            except Different as error:
                self._different = str(error)
                return
            if number in looks:
                self.findings = look(self._comparisons(), self._rules)
                if decided(self.findings):
                    return

    @property
    def status(self) -> int:
        verdicts = {finding.verdict for finding in self.findings}
        if self._different:
            return self.DIFFERENT
        if Verdict.SLOWER in verdicts:
            return self.SLOWER
        return self.UNKNOWN if Verdict.UNKNOWN in verdicts or not verdicts else self.PASSED

    def slower(self) -> list[str]:
        """The phases that lost more than their floor."""
        return sorted({f.comparison.phase for f in self.findings if f.verdict is Verdict.SLOWER})

    def record(self) -> dict[str, Any]:
        rules = {name: getattr(self._rules, name) for name in Rules.__slots__}
        return {
            "finding": self._finding(),
            "status": self.status,
            "rules": rules | {"looks": self._rules.looks},
            "results": [f.row() | self._medians(f.comparison) for f in self.findings],
            "noise": self._noise(),
            **self._replicates.record(),
        }

    def _comparisons(self) -> list[Comparison]:
        noise = self._noise()
        return [
            Comparison(
                phase,
                reference,
                max(self._floors[phase], noise.get(phase, 0.0)),
                self._replicates.log_ratios(phase, "head", reference),
            )
            for reference in self._references
            for phase in PHASES
        ]

    def _noise(self) -> dict[str, float]:
        return noise(self._replicates) if "again" in self._replicates.contenders else {}

    def _medians(self, one: Comparison) -> dict[str, float]:
        made = self._replicates.made
        roles = {"head_s": "head", "reference_s": one.reference}
        return {name: median([m[role].cost(one.phase) for m in made]) for name, role in roles.items()}

    def _state(self) -> str:
        return "; ".join(f"{f.comparison.phase} {f.loss.estimate:+.1%}" for f in self.findings) or "first look"

    def _finding(self) -> str:
        if self._different:
            return f"refused: the answers differ, speed does not matter. {self._different}"
        if not self.findings:
            return f"nothing is known: {len(self._replicates.made)} replicates, {self._rules.least} needed"
        told = {
            self.PASSED: "passed",
            self.SLOWER: "refused",
            self.UNKNOWN: "not decided: too noisy for a verdict; let the machine be quiet, or allow more replicates",
        }
        return ". ".join([told[self.status], *(_sentence(f, self._rules.catch) for f in self.findings)])


class Noise:
    """One thing against itself: what the guard would see of it by chance. An experiment; needs "base" and "again"."""

    name = "guard-noise"

    def __init__(self, replicates: Replicates, rules: Rules) -> None:
        self._replicates, self._rules = replicates, rules

    async def run(self, progress: Progress) -> None:
        """Until the noise is below the least floor, or a check would have ended."""
        looks = self._rules.looks
        for number in range(1, looks[-1] + 1):
            progress(number - 1, next(n for n in looks if n >= number), "one thing against itself")
            await self._replicates.add()
            if number in looks and max(noise(self._replicates).values()) <= LEAST_FLOOR:
                return

    def record(self) -> dict[str, Any]:
        made = self._replicates.made
        costs = {p: min((m["base"].cost(p) for m in made), default=None) for p in PHASES}
        known = noise(self._replicates) if made else {}
        told = [f"{phase} differs from itself by at most {share:.1%}" for phase, share in known.items()]
        return {
            "finding": "; ".join(told) or "nothing was measured",
            "noise": known,
            "costs": costs,
            **self._replicates.record(),
        }


def noise(replicates: Replicates) -> dict[str, float]:
    """By phase: how far apart base and base again may be, as a share of the time; infinite after too few replicates."""
    found = {}
    for phase in PHASES:
        apart = loss(replicates.log_ratios(phase, "again", "base"), _NOISE_RISK, _NOISE_RISK)
        found[phase] = max(apart.high, -apart.low / (1 + apart.low) if apart.low > -1 else math.inf)
    return found


def _sentence(finding: Finding, catch: float) -> str:
    one, lost = finding.comparison, finding.loss
    amount = f"{abs(lost.estimate):.1%} {'slower' if lost.estimate >= 0 else 'faster'} than the {one.reference}"
    span = f"({lost.low:+.1%} to {lost.high:+.1%} of its time)"
    if not lost.bounded:
        return f"{one.phase} seems {amount}: too few replicates to say more"
    meaning = {
        Verdict.SLOWER: f"more than its floor of {one.floor:.1%}",
        Verdict.KEPT: f"less than {catch:.0%} lost for sure",
        Verdict.DOUBTFUL: f"perhaps above its floor of {one.floor:.1%}, below {catch:.0%} for sure",
        Verdict.UNKNOWN: "anything is possible within that",
    }
    return f"{one.phase} is {amount} {span}: {meaning[finding.verdict]}"
