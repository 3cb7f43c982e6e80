"""What an arrival costs running streams: derived from timelines that are known, and from a system that plays one."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.errors import FileFormatError
from phaseline.lab.experiments.clash import Clash, run_clash, ticks, timeline, tolls
from phaseline.lab.metrics import chunk_schedule
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.truth import TruthSystem
from phaseline.lab.systems.truth_engine import Costs
from phaseline.lab.systems.truth_script import Fault, Script, Wire
from phaseline.lab.trace import Event, Trace
from support.clashes import STEP, simulated

STALLING = Costs(chunk=64, prompt_s=0.0005, decode_s=0.02)  # a chunk adds more than half of a decode step


@pytest.mark.parametrize("victims", [1, 3])
@pytest.mark.parametrize("chunk", [64, 100, 1000, 4096])
def test_a_prompt_of_a_thousand_tokens_stalls_once_per_piece(chunk: int, victims: int) -> None:
    costs = replace(STALLING, chunk=chunk)
    paid = tolls(simulated(costs, victims=victims))
    assert len(paid) == victims
    for toll in paid:
        assert toll.before == pytest.approx([0.02] * (STEP - 1))
        pieces = chunk_schedule(1000, chunk)
        assert toll.stalls == len(pieces) == -(-1000 // chunk)
        assert toll.during[-len(pieces) :] == pytest.approx([0.02 + 0.0005 * (b - a) for a, b in pieces])
        assert toll.outlived


@pytest.mark.parametrize("jitter_ns", [0, 1, 100_000])
def test_a_client_that_stamps_one_stream_after_the_other_counts_alike(jitter_ns: int) -> None:
    (toll,) = tolls(simulated(STALLING, jitter_ns=jitter_ns))
    assert toll.stalls == 16


@settings(max_examples=60)
@given(
    costs=st.builds(Costs, st.sampled_from([1, 7, 50, 200, 999]), st.floats(1e-5, 1e-2), st.floats(1e-3, 0.1)),
    prompt=st.integers(1, 300),
    victims=st.integers(1, 3),
)
def test_there_are_never_more_stalls_than_pieces(costs: Costs, prompt: int, victims: int) -> None:
    for toll in tolls(simulated(costs, prompt, victims=victims, tokens=STEP + prompt + 50)):
        assert toll.stalls is not None and toll.outlived
        pieces = chunk_schedule(prompt, costs.chunk)
        added = [costs.prompt_s * (end - start) for start, end in pieces]
        certain = sum(each > 0.51 * costs.decode_s for each in added)
        assert certain <= toll.stalls <= len(pieces)


def test_a_cheap_chunk_is_no_stall() -> None:
    (toll,) = tolls(simulated(replace(STALLING, prompt_s=0.0001)))
    assert toll.stalls == 0 and len(toll.during) >= 16


def test_a_victim_that_ends_first_says_so() -> None:
    (toll,) = tolls(simulated(STALLING, tokens=STEP + 5))
    assert not toll.outlived and toll.stalls == 4  # the gap in which the intruder came was an ordinary one


def test_before_the_arrival_only_gaps_count_in_which_all_victims_decode() -> None:
    clash = simulated(STALLING, victims=2)
    late = clash.victims[1]
    begun = late.events[10].t_ns
    paid = tolls(Clash((clash.victims[0], replace(late, events=late.events[10:])), clash.intruder))
    assert [len(toll.before) for toll in paid] == [sum(t >= begun for t in ticks(clash.victims[0])[:STEP]) - 1] * 2


def test_an_intruder_that_fails_stalls_nobody() -> None:
    clash = simulated(STALLING)
    paid = tolls(replace(clash, intruder=replace(clash.intruder, error="gone")))
    assert [(toll.stalls, toll.during) for toll in paid] == [(None, [])]
    assert replace(clash, intruder=replace(clash.intruder, error="gone")).errors == ["gone"]


def test_tokens_that_arrive_together_are_one_tick() -> None:
    trace = Trace(
        0, 9, (Event(1, "meta"), Event(3, "text", 1), Event(3, "text", 0), Event(3, "text"), Event(9, "tool"))
    )
    assert ticks(trace) == [3, 9]
    (toll,) = tolls(Clash((Trace(0, 9),), Trace(0, 9)))
    assert (toll.before, toll.during, toll.stalls, toll.outlived) == ([], [], None, False)


def test_lanes_of_a_clash() -> None:
    clash = simulated(STALLING, victims=2)
    drawn = timeline(clash)
    one, two, intruder = drawn["lanes"]
    assert [lane["name"] for lane in drawn["lanes"]] == ["victim 1", "victim 2", "intruder"]
    assert len(one["ticks"]) == len(two["ticks"]) == 400 and one["prefill"] == two["prefill"] == []
    assert sum(tick <= 0 for tick in one["ticks"]) == STEP
    blocks = intruder["prefill"]
    assert sum(block["stalled"] for block in blocks) == 16
    assert [a["end"] for a in blocks[:-1]] == [b["start"] for b in blocks[1:]]
    assert blocks[0]["start"] >= 0 and blocks[-1]["end"] == intruder["ticks"][0] == drawn["first_token_s"]
    failed = timeline(replace(clash, intruder=replace(clash.intruder, error="gone")))
    assert failed["first_token_s"] is None and failed["lanes"][-1]["prefill"] == []


def test_a_clash_survives_json() -> None:
    clash = simulated(STALLING)
    assert Clash.from_dict(clash.to_dict()) == clash
    with pytest.raises(FileFormatError):
        Clash.from_dict({"victims": [{}], "intruder": {}})


# Played for real.

LIVE = Script(engine=Costs(chunk=64, prompt_s=0.0005, decode_s=0.025), wire=Wire(counts="token_ids"))


def play(script: Script, victims: list[Ask], intruder: Ask, step: int = 8) -> Clash:
    return asyncio.run(run_clash(TruthSystem(script), victims, intruder, step))


def test_a_live_prompt_of_a_thousand_tokens_at_chunk_64_stalls_sixteen_times_at_most() -> None:
    clash = play(LIVE, [Ask("a", 300), Ask("b", 300)], Ask("c " * 1000, 2))
    assert len(chunk_schedule(1000, 64)) == 16
    assert not clash.errors and clash.intruder.prompt_tokens == 1000
    for victim, toll in zip(clash.victims, tolls(clash), strict=True):
        assert toll.stalls is not None and 12 <= toll.stalls <= 16, "a busy machine may hide one, never add one"
        assert toll.outlived and len(toll.before) >= 6
        assert 30 <= len(ticks(victim)) < 100, "it was told that it is enough"
        assert all(a < b for a, b in pairwise(ticks(victim)))


def test_a_victim_that_ends_or_fails_before_the_arrival_keeps_nobody_waiting() -> None:
    clash = play(LIVE, [Ask("a", 3)], Ask("b", 2))
    assert len(ticks(clash.victims[0])) == 3 and clash.intruder.sent_ns > clash.victims[0].events[-1].t_ns
    assert tolls(clash)[0].stalls == 0 or not tolls(clash)[0].outlived
    clash = play(replace(LIVE, fault=Fault("die", 2)), [Ask("a", 30)], Ask("b", 9))
    assert len(clash.errors) == 2


def test_a_cancelled_clash_cancels_its_streams() -> None:
    async def run() -> None:
        system = TruthSystem(LIVE)
        task = asyncio.create_task(run_clash(system, [Ask("a", 10_000)], Ask("b", 2), 9_000))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) <= 2, "the simulated engine may still finish its step"

    asyncio.run(run())
