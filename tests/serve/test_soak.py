"""Mixed load for PHASELINE_SOAK_S seconds (20; `make soak` takes an hour): each answer is the one known before, no
page is lost at any step, and memory stays flat.

Flat: after the last of five equal rounds no process holds GROWTH more than after the second, nobody being served.
"""

import asyncio
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.crowd import Case, leave
from support.server import Server, eventually, serving
from support.vandals import Vandal

SECONDS = float(os.environ.get("PHASELINE_SOAK_S", "20"))
ROUNDS, CLIENTS, KNOWN = 5, 24, 60
GROWTH = 6 << 20  # bytes; rounds differ by a third of it


def keep_asking(server: Server, rng: random.Random, known: list[tuple[Case, object]], until: float) -> Counter[str]:
    """What one client does, how often; fails where an answer is not the known one."""
    done: Counter[str] = Counter()
    while time.monotonic() < until:
        case, expected = rng.choice(known)
        doing = rng.choices(("asked", "left", "vandalised"), (10, 2, 1))[0]
        if doing == "asked":
            assert case.ask(server) == expected, case
        elif doing == "left":
            leave(server, case, rng.choice([0, 0, 1, 500]))
        else:
            asyncio.run(Vandal(server.address, rng, case)())
        done[doing] += 1
    return done


@pytest.mark.timeout(SECONDS + 300)  # instead of the 300 of every test
def test_hours_of_load_change_nothing(tiny: Path) -> None:
    rng = random.Random(0)
    options = ("--memory=258M", "--context=2048", "--chunk=64", "--idle-timeout=2", "--max-queue=2000")
    with serving(tiny, "--check-pages", *options) as server, ThreadPoolExecutor(CLIENTS) as threads:
        cases = [Case.drawn(rng, prompt=rng.choice([100, 1600]), tokens=120) for _ in range(KNOWN)]
        known: list[tuple[Case, object]] = [(case, case.ask(server)) for case in cases]
        files, memory, done = server.open_files, [], Counter[str]()
        for _ in range(ROUNDS):
            until = time.monotonic() + SECONDS / ROUNDS
            clients = [
                threads.submit(keep_asking, server, random.Random(rng.random()), known, until) for _ in range(CLIENTS)
            ]
            done.update(sum((client.result() for client in clients), Counter()))
            eventually(lambda: server.idle and server.open_files <= files)
            assert server.metric("pages_used") == 0
            memory.append(server.memory)
        print(f"{dict(done)}, {server.metric('preemptions_total'):g} preemptions, MiB of server and engine:")
        print(*(" + ".join(f"{size / 2**20:.1f}" for size in sizes) for sizes in memory), sep=", ")
        assert all(last - second < GROWTH for second, last in zip(memory[1], memory[-1], strict=True)), memory
        assert server.metric("preemptions_total") > 0 and done["asked"] > 0
        assert server.stop() == 0
        assert server.process.stderr and server.process.stderr.read() == ""
