"""Clashes whose timeline is known: streams of a simulated engine, and a prompt that arrives among them."""

from phaseline.lab.experiments.clash import Clash
from phaseline.lab.systems.truth_engine import Costs, Demand, timeline
from phaseline.lab.trace import Event, Trace

STEP = 32  # tokens that the victims have when the intruder arrives


def simulated(
    costs: Costs, prompt: int = 1000, *, victims: int = 1, tokens: int = 400, jitter_ns: int = 0, slow: float = 1.0
) -> Clash:
    """Victims of `tokens` tokens, and an intruder of four just after the last victim's STEP-th token.

    `jitter_ns` is how much later the intruder's stamps are than those of the victims; `slow` stretches time.
    """
    early = [Demand(0, 10, tokens)] * victims
    arrival = timeline(costs, early)[-1][STEP - 1] + 1e-6
    *streams, last = timeline(costs, [*early, Demand(arrival, prompt, 4)])
    return Clash(
        tuple(_trace(0, times, slow, 0, 10) for times in streams), _trace(arrival, last, slow, jitter_ns, prompt)
    )


def _trace(sent: float, times: list[float], slow: float, jitter_ns: int, prompt: int) -> Trace:
    moments = [round(t * slow * 1e9) + jitter_ns for t in times]
    events = tuple(Event(moment, "text", 1) for moment in moments)
    return Trace(round(sent * slow * 1e9), moments[-1], events, prompt_tokens=prompt, finish_reason="length")
