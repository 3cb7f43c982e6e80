"""What a queue of 500 requests costs the scheduler beside one of 5: to plan a step, to take a request and let it go."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from timing import show, summary, take_turns

from phaseline.engine.policy import ItlBudget
from phaseline.engine.scheduler import Scheduler
from phaseline.engine.types import Request, SamplingParams
from phaseline.state.pages import PageTable

SEATS, CONTEXT, PAGE, CHUNK = 16, 8192, 32, 512
LENGTHS = (5, 500)


def scheduler(waiting: int, *, reads: bool, budget: bool) -> Scheduler:
    """All seats taken by streams, or one of them by a prompt that is being read, and so many requests behind."""
    table = PageTable(SEATS * CONTEXT // PAGE, PAGE, SEATS, CONTEXT // PAGE)
    made = Scheduler(
        table, context=CONTEXT, chunk=CHUNK, max_running=SEATS, itl_budget=ItlBudget(50) if budget else None
    )
    for number in range(SEATS - reads):
        made.add(Request(f"stream {number}", [number] * 20, SamplingParams(4000)))
    while any(not s.generated for s in made.running) or not made.running:
        _step(made)
    for number in range(reads + waiting):
        made.add(Request(f"prompt {number}", [100 + number] * 4000, SamplingParams(10)))
    for _ in range(3):
        _step(made)
    return made


def _step(made: Scheduler) -> None:
    plan = made.plan()
    assert plan
    made.commit(plan, [7] * len(plan.sampled))
    made.observe(plan, 0.02)


def plans(made: Scheduler) -> Callable[[], object]:
    """A plan that is not committed changes nothing, so that it can be made again."""
    return lambda: [made.plan() for _ in range(50)]


def visits(made: Scheduler) -> Callable[[], object]:
    """Requests that come, and are cancelled while they wait."""

    def visit() -> None:
        for number in range(50):
            made.add(Request("visitor", [number] * 100, SamplingParams(10)))
            made.abort("visitor")

    return visit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    kinds: dict[str, Callable[[int], Callable[[], object]]] = {
        "plan: 16 streams": lambda n: plans(scheduler(n, reads=False, budget=False)),
        "plan: 15 streams and a prompt": lambda n: plans(scheduler(n, reads=True, budget=False)),
        "plan: the same under an ITL budget": lambda n: plans(scheduler(n, reads=True, budget=True)),
        "a request comes and is cancelled": lambda n: visits(scheduler(n, reads=False, budget=False)),
    }
    cells = {f"{kind}, {n} wait": make(n) for kind, make in kinds.items() for n in LENGTHS}
    seconds = take_turns(cells, args.rounds)
    rows: list[tuple[str, dict[str, Any], str]] = []
    for kind in kinds:
        few, many = (seconds[f"{kind}, {n} wait"] for n in LENGTHS)
        rows.append((f"{kind}: us, {LENGTHS[0]} wait", summary([each / 50 * 1e6 for each in few]), ""))
        rows.append(
            (f"{kind}: {LENGTHS[1]} over {LENGTHS[0]}", summary([b / a for a, b in zip(few, many, strict=True)]), "1")
        )
    show("A long queue", rows)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({name: figure for name, figure, _ in rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
