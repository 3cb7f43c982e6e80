"""What a prompt of the context's full length costs a stream that runs on our server, with `--itl-budget` and without.

`lab interference` over HTTP, the two servers in turn; before each turn such a stream runs alone. With a budget
the worst gap is to stay under the larger of the budget and three times the p99.9 of gaps of the streams that ran alone.
"""

import argparse
import asyncio
import json
import random
import sys
from typing import Any

import numpy as np
from servers import Server, our_command, started
from timing import show, summary

from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.drive import follow
from phaseline.lab.experiments.clash import tolls
from phaseline.lab.experiments.stage import Scene, Setting, Stage
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.prompts import random_asks

ALONE = 1500  # tokens of a stream that runs alone
VOCABULARY = range(1000, 9000)
OUTPUT = 8  # tokens of the long prompt's answer


async def turn(server: Server, scene: Scene, seed: int) -> tuple[list[float], float, float]:
    """Gaps of a stream alone; then the worst of one among which the prompt arrives, and its time to first token."""
    server.resume()
    system = server.system()
    try:
        stage = Stage(system, vocabulary=VOCABULARY, seed=seed)
        await stage.warm_up(scene)
        alone = await follow(
            system, random_asks(1, scene.victim_tokens, ALONE, vocabulary=VOCABULARY, seed=seed + 1)[0]
        )
        clash = await stage.play(scene, Setting())
    finally:
        await system.close()
        server.halt()
    assert not clash.errors and alone.error is None, (clash.errors, alone.error)
    (toll,) = tolls(clash)
    assert toll.outlived, "the stream ended before the long prompt was read"
    ttft = trace_metrics(clash.intruder).ttft
    assert ttft
    return trace_metrics(alone).gaps, max(toll.during), ttft


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Rows of figures."""
    scene = Scene(intruder_tokens=args.context - OUTPUT, intruder_output=OUTPUT, stream_tokens=args.context - 64)
    common = ("--context", str(args.context))
    budgeted = our_command(args.model, args.threads, *common, "--itl-budget", str(args.budget))
    names = ("no budget", f"budget of {args.budget:g} ms")
    alone = {name: list[float]() for name in names}
    worst, ttft = ({name: list[float]() for name in names} for _ in range(2))
    with started([(names[0], our_command(args.model, args.threads, *common)), (names[1], budgeted)], 120) as servers:
        for round_ in range(args.rounds):
            for server in random.Random(round_).sample(servers, len(servers)):
                gaps, gap, first = asyncio.run(turn(server, scene, 10 * round_))
                alone[server.name] += gaps
                worst[server.name].append(1e3 * gap)
                ttft[server.name].append(first)
    rows = {f"{name}: worst gap, ms": summary(worst[name]) for name in names}
    rows |= {f"{name}: TTFT of the prompt, s": summary(ttft[name]) for name in names}
    quiet = 1e3 * float(np.percentile(alone[names[1]], 99.9))
    rows["alone: median gap, ms"] = summary([1e3 * float(np.median(alone[names[1]]))])
    rows["alone: p99.9 of gaps, ms"] = summary([quiet])
    limit = max(args.budget, 3 * quiet)
    rows["with a budget: worst gap over its limit"] = summary([gap / limit for gap in worst[names[1]]])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--context", type=int, default=8192, help="of the servers; the prompt fills it")
    parser.add_argument("--budget", type=float, default=30, metavar="MS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = measure(args)
    if args.json:
        print(json.dumps({"model": args.model, "cpu": cpu_model(), "threads": args.threads, "rows": rows}))
        return 0
    hopes = [""] * (len(rows) - 1) + ["below 1"]
    title = f"{args.model}, {args.threads} threads, {cpu_model()}, a prompt of {args.context - OUTPUT} tokens"
    show(title, [(name, figure, hope) for (name, figure), hope in zip(rows.items(), hopes, strict=True)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
