"""How prefill and decode share a step: who comes first, and how many prompt tokens may join."""

import math
from dataclasses import dataclass, field
from enum import Enum

from phaseline.engine.step_cost import Estimate, StepCost, step_rows
from phaseline.errors import RequestError, UnsupportedError
from phaseline.program.step import Step

_AIM = 0.75  # of a budget: the rest is for what passes between steps, and for those that take longer than estimated
LEAST = 2  # rows that cost hardly more than one: a prompt must get on


class Phase(Enum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Policy:
    """Phases in the order in which they may claim a step.

    `mixed`: the second phase joins what the first one planned; otherwise it runs only if the first has nothing.
    """

    name: str
    order: tuple[Phase, Phase]
    mixed: bool


_POLICIES = {
    policy.name: policy
    for policy in (
        Policy("mixed", (Phase.DECODE, Phase.PREFILL), mixed=True),  # stall-free: no stream waits for a prompt
        Policy("prefill-first", (Phase.PREFILL, Phase.DECODE), mixed=False),
        Policy("decode-first", (Phase.DECODE, Phase.PREFILL), mixed=False),
    )
}


def policy_named(name: str, *, itl_budget: bool = False) -> Policy:
    """The policy called `name`; UnsupportedError if there is none, or if it can't keep an ITL budget."""
    if name not in _POLICIES:
        raise UnsupportedError(f"scheduling policy {name!r} is unknown; supported: {', '.join(_POLICIES)}")
    policy = _POLICIES[name]
    if itl_budget and not policy.mixed:
        raise UnsupportedError(f"an ITL budget needs the policy mixed: under {name} one phase waits for the other")
    return policy


@dataclass(slots=True)
class Allowance:
    """Prompt tokens that may still join a step: at most `rows`, beyond the first `sure` only while `seconds` last."""

    rows: int
    sure: int = 0
    seconds: float = math.inf
    estimate: Estimate | None = None

    def take(self, wanted: int, start: int, scored: bool = False) -> int:
        """How many of the `wanted` next tokens of a prompt read up to `start` may join; they are then spent.

        `scored`: all of them get logits.
        """
        count = asked = min(wanted, self.rows)
        if self.estimate is not None:
            within = self.estimate.most_rows(self.seconds, start, asked, scored)
            count = min(asked, max(self.sure, within))
            chunk = self.estimate.reach.chunk(start, count, count * scored)
            self.seconds -= self.estimate.seconds(chunk)
            self.estimate = self.estimate.beside(chunk)
            self.sure = max(0, self.sure - count)
        self.rows = self.rows - count if count == asked else 0
        return count


@dataclass(frozen=True, slots=True)
class ItlBudget:
    """Sizes the chunk of a mixed step so that the step, and with it the gap of each stream, takes at most `ms`.

    What a step costs is learnt from the steps that ran. LEAST tokens of prompts are read in each, whatever they cost;
    chunks grow from there at most fourfold from one step to the next.
    """

    ms: float
    cost: StepCost = field(default_factory=StepCost)

    def __post_init__(self) -> None:
        if isinstance(self.ms, bool) or not isinstance(self.ms, int | float) or not 0 < self.ms < math.inf:
            raise RequestError(f"ITL budget = {self.ms!r} ms: it must be a number above 0")

    def allowance(self, decodes: Step, chunk: int) -> Allowance:
        """What may join a step of these decode segments: all of `chunk` if there are none."""
        if not decodes.segments:
            return Allowance(chunk)
        estimate = self.cost.estimate()
        spent = estimate.seconds(step_rows(decodes, self.cost.reach))
        return Allowance(chunk, LEAST, _AIM * self.ms / 1e3 - spent, estimate)
