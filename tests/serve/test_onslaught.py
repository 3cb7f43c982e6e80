"""Two hundred clients at once who mean harm or know no better: others are answered as ever, and nothing is lost."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.crowd import COMPLETIONS, Case
from support.server import Server, eventually, serving
from support.vandals import NONSENSE, Vandal

GROWTH = 12 << 20  # bytes that a process may keep of a whole onslaught:
HONEST = 12


async def onslaught(server: Server, rng: random.Random) -> None:
    cases = [Case.drawn(rng, prompt=2000, tokens=400) for _ in range(200)]
    await asyncio.gather(*(Vandal(server.address, random.Random(rng.random()), case)() for case in cases))


def test_an_onslaught_harms_nobody_and_leaves_nothing(tiny: Path) -> None:
    rng = random.Random(1)
    options = ("--memory=262M", "--context=4096", "--chunk=128", "--idle-timeout=1", "--max-queue=2000")
    with serving(tiny, "--check-pages", *options) as server:
        cases = [Case.drawn(rng, prompt=400, tokens=100) for _ in range(HONEST)]
        alone = [case.ask(server) for case in cases]
        files, before, memory = server.open_files, (0, 0), (0, 0)
        for _ in range(3):
            with ThreadPoolExecutor(HONEST) as threads:
                answers = [threads.submit(case.ask, server) for case in cases]
                asyncio.run(onslaught(server, rng))
                assert [answer.result() for answer in answers] == alone
            eventually(lambda: server.idle and server.open_files <= files)
            assert server.metric("pages_used") == 0
            before, memory = memory, server.memory
        assert all(now - then < GROWTH for then, now in zip(before, memory, strict=True)), (before, memory)
        assert server.ask("/health").status == 200 and len(server.children) == 1
        assert server.stop() == 0
        assert server.process.stderr and server.process.stderr.read() == ""  # a pipe that clients can fill stops all


@pytest.mark.parametrize("body", NONSENSE)
def test_nonsense_is_refused(server: Server, body: bytes) -> None:
    assert server.ask(COMPLETIONS, body).status == 400
