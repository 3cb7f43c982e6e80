"""How prefill and decode share a step."""

from dataclasses import dataclass
from enum import Enum

from phaseline.errors import UnsupportedError


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


def policy_named(name: str) -> Policy:
    """The policy called `name`; UnsupportedError if there is none."""
    if name not in _POLICIES:
        raise UnsupportedError(f"scheduling policy {name!r} is unknown; supported: {', '.join(_POLICIES)}")
    return _POLICIES[name]
