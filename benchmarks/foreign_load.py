"""What a step costs beside a foreign process that keeps one core busy, over the same step on one core fewer, alone.

The lost core explains as much as a step takes when it has one thread less and the machine to itself. A ratio of 1 means
that nothing but that core was lost.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from timing import show, summary

from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.drive import timed
from phaseline.lab.steps import StepSize, step_bench
from phaseline.lab.systems.phaseline import PhaselineSystem

SIZES = {"decode at context 128": StepSize(1, 128), "prefill of 512": StepSize(512)}
SAMPLE_S = 0.6  # steps are repeated so long for one sample: many turns of the system's scheduler
SETTLE_S = 0.6  # before it: the team needs some of it to notice that it has company, or no longer


@contextmanager
def busy_core() -> Iterator[None]:
    """A foreign process that computes all the time."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def mean_step(run: Any) -> float:
    """Mean seconds of a step over SAMPLE_S: what is lost now and then counts too."""
    times, start = [], time.monotonic()
    while (past := time.monotonic() - start) < SETTLE_S + SAMPLE_S:
        took = timed(run)
        if past >= SETTLE_S:
            times.append(took)
    return float(np.mean(times))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads < 2:
        raise SystemExit("with one thread there is no core to lose: give --threads 2 or more")
    systems = [
        PhaselineSystem(load(args.model, threads=threads, context=1024)) for threads in (args.threads, args.threads - 1)
    ]
    sizes = list(SIZES.values())
    beside, alone, fewer = ({name: list[float]() for name in SIZES} for _ in range(3))
    with step_bench(systems[0], sizes) as full, step_bench(systems[1], sizes) as less:
        for _ in range(args.rounds):
            for name, size in SIZES.items():
                alone[name].append(mean_step(lambda size=size: full.seconds(size)))
                fewer[name].append(mean_step(lambda size=size: less.seconds(size)))
                with busy_core():
                    beside[name].append(mean_step(lambda size=size: full.seconds(size)))
    rows = {}
    for name in SIZES:
        rows[f"{name}: alone, ms"] = summary([1e3 * s for s in alone[name]])
        rows[f"{name}: one thread fewer, alone, ms"] = summary([1e3 * s for s in fewer[name]])
        rows[f"{name}: beside a foreign process, ms"] = summary([1e3 * s for s in beside[name]])
        rows[f"{name}: beside it, over one thread fewer"] = summary(
            [a / b for a, b in zip(beside[name], fewer[name], strict=True)]
        )
    if args.json:
        print(json.dumps({"model": args.model, "cpu": cpu_model(), "threads": args.threads, "rows": rows}))
        return 0
    title = f"{args.model}, {args.threads} threads, {cpu_model()}, {args.rounds} rounds"
    show(title, [(name, figure, "at most 1.15" if "over" in name else "") for name, figure in rows.items()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
