"""What the server adds to its engine: CPU time a token, time between tokens over HTTP, and the cost of a queue.

CPU time is that of the server's own process, the engine's not counted, over streams of equal length with prompts of 16
tokens. TPOT over HTTP and of an engine in this process take turns, one stream each, as do a queue of 5 and one of 500
requests that wait behind a running stream: its gaps, as its client sees them, are the cost of a step.
"""

import argparse
import asyncio
import json
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from servers import Server, cpu_seconds, our_command, started
from timing import show, summary

from phaseline.engine.load import load
from phaseline.execute.host import cpu_model, usable_cores
from phaseline.lab.drive import Job, drive, drive_streams, follow
from phaseline.lab.metrics import trace_metrics
from phaseline.lab.prompts import random_asks
from phaseline.lab.stats import median
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.phaseline import PhaselineSystem
from phaseline.lab.workload import Workload

STREAMS = (1, 4, 16)
TOKENS = 256  # of an answer
SHORT, QUEUED = 16, 64  # prompt tokens of running and of waiting requests
QUEUES = (5, 500)
SAMPLES = 200  # gaps behind a queue
VOCABULARY = range(1000, 9000)


def asks(count: int, prompt: int, tokens: int, seed: int) -> Sequence[Ask]:
    return random_asks(count, prompt, tokens, vocabulary=VOCABULARY, seed=seed, options={"temperature": 0})


async def cpu_a_token(server: Server, streams: int, seed: int) -> float:
    """CPU seconds of the server's process for each token that it streamed."""
    system = server.system()
    try:
        before = cpu_seconds(server.pid)
        traces = await drive_streams(system, Workload(asks(streams, SHORT, TOKENS, seed), None, streams))
        used = cpu_seconds(server.pid) - before
    finally:
        await system.close()
    assert all(trace.error is None for trace in traces), traces[0].error
    return used / sum(trace.output_tokens or 0 for trace in traces)


async def tpot_over_http(server: Server, seed: int) -> float:
    """Seconds."""
    system = server.system()
    try:
        trace = await follow(system, asks(1, SHORT, TOKENS, seed)[0])
    finally:
        await system.close()
    tpot = trace_metrics(trace).tpot
    assert tpot, trace.error
    return tpot


def tpot_in_process(system: PhaselineSystem, seed: int) -> float:
    """Seconds."""
    (trace,) = drive(system, [Job(asks(1, SHORT, TOKENS, seed)[0].prompt, TOKENS)])  # type: ignore[arg-type]
    tpot = trace_metrics(trace).tpot
    assert tpot
    return tpot


async def gap_behind_queue(server: Server, queue: int, seed: int) -> float:
    """Median seconds between tokens of the only running stream while `queue` requests wait for its seat."""
    victim, *waiting = asks(queue + 1, QUEUED, 16, seed)
    system, started_at, gaps = server.system(), asyncio.Event(), list[float]()
    full = False

    async def run() -> None:
        loop, before = asyncio.get_running_loop(), 0.0
        async with aclosing(system.generate(Ask(victim.prompt, 7000, ignore_eos=True, options=victim.options))) as got:
            async for pieces in got:
                if any(piece.text for piece in pieces):
                    started_at.set()
                    now = loop.time()
                    if full:
                        gaps.append(now - before)
                        if len(gaps) == SAMPLES:
                            return
                    before = now

    running = asyncio.create_task(run())
    await started_at.wait()
    line = [asyncio.create_task(follow(system, ask)) for ask in waiting]
    try:
        while waiting_requests(await asyncio.to_thread(_metrics, server)) < queue:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        full = True
        await running
        assert not any(task.done() for task in line), "some did not wait"
    finally:
        for task in (running, *line):
            task.cancel()
        await asyncio.gather(running, *line, return_exceptions=True)
        await system.close()
    assert len(gaps) == SAMPLES, f"only {len(gaps)} gaps"
    return median(gaps[1:])


def waiting_requests(metrics: str) -> float:
    """As /metrics tells."""
    return next(
        float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("phaseline_requests_waiting")
    )


def _metrics(server: Server) -> str:
    with urllib.request.urlopen(server.url + "/metrics") as answer:
        text: str = answer.read().decode()
        return text


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Rows of figures."""
    cpu: dict[int, list[float]] = {streams: [] for streams in STREAMS}
    queues: dict[int, list[float]] = {queue: [] for queue in QUEUES}
    http, inside = list[float](), list[float]()
    roomy = our_command(args.model, args.threads)
    narrow = our_command(args.model, args.threads, "--max-running", "1", "--max-queue", "1000")
    with (
        started([("phaseline", roomy), ("one seat", narrow)], args.patience) as (server, seat),
        load(args.model, threads=args.threads, context=1024) as engine,
    ):
        system = PhaselineSystem(engine)
        for round_ in range(args.rounds + 1):
            seed = 100 * round_
            server.resume()
            of_cpu = {streams: asyncio.run(cpu_a_token(server, streams, seed + streams)) for streams in STREAMS}
            of_http = asyncio.run(tpot_over_http(server, seed + 50))
            server.halt()
            of_inside = tpot_in_process(system, seed + 50)
            seat.resume()
            of_queues = {queue: asyncio.run(gap_behind_queue(seat, queue, seed + queue)) for queue in QUEUES}
            seat.halt()
            if round_:  # the first warms up
                http.append(of_http)
                inside.append(of_inside)
                for taken, kept in ((of_cpu, cpu), (of_queues, queues)):
                    for name, value in taken.items():
                        kept[name].append(value)
    few, many = (queues[queue] for queue in QUEUES)
    rows = {f"server CPU, {n} streams, us a token": summary([1e6 * s for s in taken]) for n, taken in cpu.items()}
    rows["TPOT over HTTP, ms"] = summary([1e3 * s for s in http])
    rows["TPOT in this process, ms"] = summary([1e3 * s for s in inside])
    rows["HTTP over in process"] = summary([a / b for a, b in zip(http, inside, strict=True)])
    rows |= {f"gap with {n} queued, ms": summary([1e3 * s for s in taken]) for n, taken in queues.items()}
    rows[f"{QUEUES[1]} queued over {QUEUES[0]}"] = summary([a / b for a, b in zip(many, few, strict=True)])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a pulled name or a .gguf path")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--patience", type=float, default=120, metavar="S", help="for a server to start")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = measure(args)
    if args.json:
        print(json.dumps({"model": args.model, "cpu": cpu_model(), "threads": args.threads, "rows": rows}))
        return 0
    hopes = ["at most 120"] * len(STREAMS) + ["", "", "at most 1.1", "", "", "1"]
    title = f"{args.model}, {args.threads} threads, {cpu_model()}, {args.rounds} rounds"
    show(title, [(name, figure, hope) for (name, figure), hope in zip(rows.items(), hopes, strict=True)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
