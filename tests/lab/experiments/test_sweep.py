"""Sweeps: what is asked of a system, in which order, and what its traces show."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.lab.experiments.sweep import (
    LEAST_ROUNDS,
    Cell,
    Sweep,
    cell_row,
    decode_cell,
    measured,
    prefill_cell,
    queued,
    sample_seconds,
    samples_of,
)
from phaseline.lab.systems.base import Ask, Piece, StreamFault
from phaseline.lab.trace import META
from support.sweeps import decode_row, prefill_row, trace


class Listener:
    """A system that notes what it is asked, answers at once, and refuses prompts beyond its context."""

    name = "listener"

    def __init__(self, context: int = 10_000) -> None:
        self.asks: list[Ask] = []
        self._context = context

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        self.asks.append(ask)
        if len(ask.prompt) > self._context:
            raise StreamFault("too long")
        for _ in range(ask.max_tokens):
            await asyncio.sleep(0)
            yield [Piece("text", 1)]
        yield [Piece(META, facts={"prompt_tokens": len(ask.prompt) + 3})]

    async def describe(self) -> Mapping[str, Any]:
        return {}

    async def close(self) -> None:
        """Nothing is held."""


def run(sweep: Sweep) -> list[tuple[int, int, str]]:
    said: list[tuple[int, int, str]] = []
    asyncio.run(sweep.run(lambda *progress: said.append(progress)))
    return said


CELLS = [prefill_cell(5), prefill_cell(20), decode_cell(64), decode_cell(64, 3)]


def test_rounds_ask_each_cell_once_with_new_prompts_for_prefill() -> None:
    system = Listener()
    sweep = Sweep({"": system}, CELLS, rounds=4, vocabulary=range(1000))
    said = run(sweep)
    warmup, *asks = system.asks
    assert len(warmup.prompt) == 5 and warmup.max_tokens == 1
    assert all(ask.ignore_eos and ask.min_tokens == ask.max_tokens for ask in asks)
    prompts = [tuple(ask.prompt) for ask in asks if ask.max_tokens == 1]
    assert sorted(map(len, prompts)) == [5] * 4 + [20] * 4
    assert len({prompt[0] for prompt in [*prompts, tuple(warmup.prompt)]}) == 9, "no cache can serve one with another"
    decodes = [tuple(ask.prompt) for ask in asks if ask.max_tokens == 24]
    assert len(decodes) == 4 * (1 + 3) and {len(prompt) for prompt in decodes} == {64 - 12}
    assert len(set(decodes)) == 3, "the same prompts in each round"
    assert {cell: [len(traces) for traces in rounds] for cell, rounds in sweep.samples.items()} == {
        cell: [cell.streams] * 4 for cell in CELLS
    }
    assert [done for done, _, _ in said] == sorted(done for done, _, _ in said) and said[-1] == (16, 16, "done")


def test_between_is_called_before_the_first_round_and_after_each() -> None:
    calls: list[int] = []
    system = Listener()
    sweep = Sweep({"": system}, CELLS, rounds=2, vocabulary=range(1000))
    asyncio.run(sweep.run(lambda *_: None, lambda: calls.append(len(system.asks))))
    assert calls == [1, 1 + 6, 1 + 12]


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, LEAST_ROUNDS), (1e9, 3 * LEAST_ROUNDS)])
def test_time_decides_the_number_of_rounds(budget: float, rounds: int) -> None:
    sweep = Sweep({"": Listener()}, [prefill_cell(3)], budget_s=budget, vocabulary=range(100))
    run(sweep)
    assert sweep.rounds == rounds == len(sweep.samples[prefill_cell(3)])


def test_a_cell_that_fails_is_not_asked_again_and_says_why() -> None:
    system = Listener(context=10)
    sweep = Sweep({"": system}, [prefill_cell(5), prefill_cell(20)], rounds=3, vocabulary=range(100))
    run(sweep)
    assert sum(len(ask.prompt) == 20 for ask in system.asks) == 1
    row = cell_row(prefill_cell(20), sweep.samples[prefill_cell(20)])
    assert row["error"] == "too long" and row["seconds"] == [] and row["tok_s"] is None and row["median_s"] is None
    good = cell_row(prefill_cell(5), sweep.samples[prefill_cell(5)])
    assert good["error"] is None and len(good["seconds"]) == 3
    assert (good["asked_tokens"], good["tokens"]) == (5, 8), "as the server counts them"


def test_cells_go_to_their_own_system() -> None:
    one, two = Listener(), Listener()
    cells = [decode_cell(64), decode_cell(64, system="other")]
    sweep = Sweep({"": one, "other": two}, cells, rounds=2, vocabulary=range(100))
    run(sweep)
    assert len(one.asks) == len(two.asks) == 3
    assert [cell_row(c, r)["system"] for c, r in sweep.samples.items()] == [None, "other"]


def test_cancelling_keeps_what_was_measured() -> None:
    system = Listener()
    sweep = Sweep({"": system}, CELLS, rounds=1000, vocabulary=range(1000))

    async def interrupted() -> None:
        task = asyncio.create_task(sweep.run(lambda *_: None))
        while sweep.rounds < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(interrupted())
    assert all(len(rounds) >= 2 for rounds in sweep.samples.values())


def test_what_samples_show() -> None:
    assert sample_seconds(Cell("prefill", 4), [trace([0.25])]) == 0.25
    assert sample_seconds(Cell("decode", 3), [trace([1.0, 1.5, 2.0])]) == pytest.approx(0.5)
    # All decode from 2 to 4: then each stream gets two tokens in two seconds.
    streams = [trace([1, 2, 3, 4]), trace([2, 3, 4, 5]), trace([1.5, 2, 3, 4])]
    assert sample_seconds(Cell("decode", 4, 0, 3), streams) == pytest.approx(1.0)
    double = [trace([1, 2, 3], tokens=2), trace([1, 2, 3], tokens=2)]
    assert sample_seconds(Cell("decode", 6, 0, 2), double) == pytest.approx(0.5)
    assert sample_seconds(Cell("decode", 3), [trace([1.0, 2.0], error="broken")]) is None
    assert sample_seconds(Cell("decode", 3, 0, 2), [trace([1.0, 2.0]), trace([])]) is None


def test_streams_that_wait_for_others_have_no_common_window() -> None:
    waiting = [trace([1, 2, 3]), trace([4, 5, 6])]
    assert queued(waiting) and sample_seconds(Cell("decode", 3, 0, 2), waiting) is None
    assert not queued([trace([1, 2, 3]), trace([2, 3, 4])]) and not queued([trace([])]) and not queued([trace([1])])
    row = cell_row(Cell("decode", 3, 0, 2), [waiting])
    assert row["queued"] and row["median_s"] is None and row["error"] is None and row["last_ttft_s"] == 4


def test_rows_give_samples_in_order_of_rounds() -> None:
    rows = [decode_row(64, [0.5, 0.25]), prefill_row(8, [0.1, 0.2]), prefill_row(4, [0.3, 0.4])]
    found = measured(rows, "prefill")
    assert [row["tokens"] for row in found] == [4, 8]
    assert samples_of(found, "tokens") == ([4, 4, 8, 8], [0.3, 0.4, 0.1, 0.2])
    (decode,) = measured(rows, "decode")
    assert (decode["tok_s"], decode["median_s"], decode["spread_s"]) == pytest.approx((1 / 0.375, 0.375, 0.125))


def test_no_rounds_are_refused() -> None:
    with pytest.raises(RequestError, match="repeats = 0"):
        Sweep({}, [], rounds=0)
