"""The truth server tells the truth: what it says it sent is its script, and the lab sees just that."""

import asyncio
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, PhaselineError, RequestError
from phaseline.lab.calibration import calibrate
from phaseline.lab.metrics import chunk_schedule
from phaseline.lab.stats import median
from phaseline.lab.systems.base import Ask, Piece
from phaseline.lab.systems.openai_http import OpenAISystem
from phaseline.lab.systems.truth import TruthSystem, truth_server
from phaseline.lab.systems.truth_engine import Costs, Demand, timeline
from phaseline.lab.systems.truth_script import Burst, Fault, Script, Wire, steady
from phaseline.lab.systems.truth_wire import Speaker
from phaseline.lab.trace import META, Trace
from support.streams import Stream, follow, follow_and_close

LATE_S = 0.5  # what a busy machine may add to a time; the calibration says what it really is


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(times)]


def test_a_prompt_alone_takes_its_chunks_then_its_steps() -> None:
    costs = Costs(chunk=64, prompt_s=0.001, decode_s=0.02, row_s=0.005)
    (times,) = timeline(costs, [Demand(at=3, prompt=1000, tokens=5)])
    assert times == pytest.approx([4 + 0.025 * n for n in range(5)])


def test_the_floor_is_the_least_of_a_step() -> None:
    costs = Costs(chunk=100, prompt_s=0.001, decode_s=0.01, floor_s=0.03)
    assert [costs.step_s(rows, 0) for rows in (1, 30, 31, 100)] == pytest.approx([0.03, 0.03, 0.031, 0.1])
    (times,) = timeline(costs, [Demand(0, 110, 3)])
    assert times == pytest.approx([0.13, 0.16, 0.19])


def test_prompts_share_the_chunk_and_the_first_comes_first() -> None:
    costs = Costs(chunk=64, prompt_s=1, decode_s=10)
    assert timeline(costs, [Demand(0, 96, 2), Demand(0, 96, 1)]) == [[64 + 64, 64 + 64 + 74], [64 + 64 + 74]]


@pytest.mark.parametrize("chunk", [64, 100, 1000, 4096])
def test_a_long_prompt_stalls_the_other_stream_once_per_chunk(chunk: int) -> None:
    """In closed form: each chunk rides on one decode step, and the intruder waits for the step it came into."""
    costs = Costs(chunk, prompt_s=0.001, decode_s=0.02)
    victim, intruder = timeline(costs, [Demand(0, 10, 60), Demand(0.5, 1000, 4)])
    pieces = chunk_schedule(1000, chunk)
    joined = next(t for t in victim if t >= 0.5)
    assert intruder[0] == pytest.approx(joined + 1000 * 0.001 + len(pieces) * 0.02)
    long = [gap for gap in gaps(victim) if gap > 1.5 * median(gaps(victim)[:10])]
    assert long == pytest.approx([0.02 + 0.001 * (end - start) for start, end in pieces])
    assert len(long) == math.ceil(1000 / chunk)


@given(
    st.builds(Costs, st.integers(1, 9), st.just(0.25), st.just(0.5), st.just(0.125), st.sampled_from([0.0, 1.0])),
    st.lists(st.builds(Demand, st.integers(0, 20).map(float), st.integers(1, 30), st.integers(1, 9)), max_size=5),
)
def test_every_request_gets_what_it_asked_for_and_work_takes_its_time(costs: Costs, demands: list[Demand]) -> None:
    demands.sort(key=lambda demand: demand.at)
    times = timeline(costs, demands)
    assert [len(each) for each in times] == [demand.tokens for demand in demands]
    for each, demand in zip(times, demands, strict=True):
        assert each == sorted(each)
        assert each[0] >= demand.at + demand.prompt * costs.prompt_s
        assert all(gap >= costs.decode_s + costs.row_s for gap in gaps(each))
    if demands:  # nothing is faster than all the work, one after the other
        prompts = sum(demand.prompt for demand in demands) * costs.prompt_s
        assert max(max(each) for each in times) >= prompts


ENGINE = Script(engine=Costs(chunk=50, prompt_s=0.0005, decode_s=0.01), wire=Wire(counts="token_ids"))


async def _interference(system: Any) -> tuple[Stream, Stream]:
    """A stream, and a prompt of 200 tokens that comes while it decodes."""
    victim = asyncio.create_task(follow(system, Ask("a", 40, options={"user": "victim"})))
    await asyncio.sleep(0.1)
    intruder = await follow(system, Ask("b " * 200, 3, options={"user": "intruder"}))
    return await victim, intruder


def _check_interference(victim: Stream, intruder: Stream) -> None:
    assert victim.content == [Piece("text", 1, "tok ")] * 40 and intruder.content == [Piece("text", 1, "tok ")] * 3
    assert intruder.facts["prompt_tokens"] == 200 and intruder.facts["output_tokens"] == 3
    assert 0.14 <= intruder.content_times[0] < 0.14 + 0.01 + LATE_S  # four chunks, each with a decode step
    assert victim.content_times[-1] >= 0.0005 + 39 * 0.01 + 0.1  # the intruder's prompt is in it


def test_the_engine_really_stalls_other_streams() -> None:
    async def run(url: str) -> tuple[Stream, Stream]:
        system = OpenAISystem(url, "truth")
        try:
            return await _interference(system)
        finally:
            await system.close()

    with truth_server(ENGINE) as server:
        seen = dict(zip(("victim", "intruder"), asyncio.run(run(server.url)), strict=True))
        sent = {user: Trace.from_dict(trace) for user, trace in server.sent().items()}
    _check_interference(**seen)
    assert ENGINE.engine
    demands = [Demand(sent[user].sent_ns / 1e9, n, m) for user, n, m in (("victim", 1, 40), ("intruder", 200, 3))]
    for user, planned in zip(("victim", "intruder"), timeline(ENGINE.engine, demands), strict=True):
        really = [event.t_ns / 1e9 for event in sent[user].events if event.channel != META]
        assert all(-1e-4 < a - b < LATE_S for a, b in zip(really, planned, strict=True))


def test_the_twin_stalls_alike() -> None:
    _check_interference(*asyncio.run(_interference(TruthSystem(ENGINE))))


def test_a_stream_given_up_delays_nobody() -> None:
    async def run() -> Stream:
        system = TruthSystem(ENGINE)
        given_up = system.generate(Ask("b " * 100_000, 1))
        await anext(given_up)
        waiting = asyncio.ensure_future(anext(given_up))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return await follow(system, Ask("a", 1))

    assert asyncio.run(run()).content_times[0] < 0.05 + LATE_S, "its prompt would take 50 s"


def test_the_calibration_compares_stamps_of_one_clock() -> None:
    found = calibrate(seconds=0.5, streams=3, gap_s=0.01)
    assert found["counts_exact"] is True and found["events"] > 100
    error = found["error_ms"]
    assert 0 < error["p50"] <= error["p99"] <= error["max"] < LATE_S * 1e3
    assert 0 < found["request_ms"]["p50"] < LATE_S * 1e3 and found["request_ms"]["p99"] is None


@pytest.mark.parametrize(
    ("manner", "holds", "lacks"),
    [
        (
            {},
            ['data: {"id"', '"choices": []', "data: [DONE]\n\n", '"finish_reason": "length"'],
            ["data:{", "\r", "\n:"],
        ),
        ({"newline": "\r\n"}, ["\r\n\r\n"], ["\n\n"]),
        ({"newline": "\r"}, ["\r\r"], ["\n"]),
        ({"space": False}, ['data:{"id"', "data:[DONE]"], ["data: "]),
        ({"pretty": True}, ["data: {\ndata:  "], []),
        ({"comments": True}, [": a comment\ndata: "], []),
        ({"names": True}, ["event: message\ndata: "], []),
        ({"final_blank": False}, ["}\n\ndata: [DONE]"], ["[DONE]\n"]),
        ({"usage": "null"}, ['"choices": null, "usage": {"prompt_tokens": 3, "completion_tokens": 2}'], []),
        ({"usage": "missing"}, ['"model": "m", "usage": {'], []),
        ({"usage": "last", "done": False}, ['"finish_reason": "length"}], "usage": {'], ["[DONE]"]),
        ({"usage": "none", "finish_reason": None}, [], ['"usage"', '"length"']),
        ({"counts": "token_ids"}, ['"token_ids": [7, 7]'], []),
        ({"counts": "usage", "cached_tokens": 1}, ['"cached_tokens": 1'], []),
        ({"token_text": "né😀"}, ['"né😀né😀"'], ["\\u"]),
    ],
)
def test_the_wire_is_as_it_was_ordered(manner: dict[str, Any], holds: list[str], lacks: list[str]) -> None:
    """Else the tests of the client would test less than they say."""
    speaker = Speaker(Wire(**manner), model="m", chat=True, usage_asked=True, prompt_tokens=3)
    said = b"".join([speaker.role(), speaker.burst(Burst(0, 2)), *speaker.closing()]).decode()
    assert [part for part in holds if part not in said] == [] and [part for part in lacks if part in said] == []


def test_a_script_survives_json() -> None:
    bursts = (Burst(0.5, 2, "reasoning"), *steady(1, 0.25, 3))
    assert [burst.at for burst in bursts] == [0.5, 1, 1.25, 1.5]
    for script in (Script(bursts, wire=Wire(cut=3), fault=Fault("die", 2), model=None), ENGINE):
        assert Script.from_json(script.to_json()) == script


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"bursts": [{"at": 1}, {"at": 0}]}',
        '{"bursts": [{"at": 1, "tokens": 0}]}',
        '{"bursts": [{"at": 1, "channel": "meta"}]}',
        '{"bursts": [{"at": 1}], "engine": {"chunk": 1, "prompt_s": 1, "decode_s": 1}}',
        '{"engine": {"chunk": 0, "prompt_s": 1, "decode_s": 1}}',
        '{"bursts": [{"at": 1}], "wire": {"usage": "odd"}}',
        '{"bursts": [{"at": 1}], "wire": {"odd": 1}}',
        '{"bursts": [{"at": 1}], "fault": {"kind": "odd"}}',
        '{"bursts": [{"at": 1}], "odd": 1}',
    ],
)
def test_what_is_no_script(text: str) -> None:
    with pytest.raises(FileFormatError, match="not a script"):
        Script.from_json(text)


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phaseline.lab.systems.truth_server", "--script"]
    (tmp_path / "bad.json").write_text("{}")
    for path, said in (("bad.json", "not a script"), ("none.json", "No such file")):
        done = subprocess.run([*command, str(tmp_path / path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "good.json").write_text(Script(steady(0, 0.01, 3)).to_json())
    with subprocess.Popen([*command, str(tmp_path / "good.json")], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            assert len(asyncio.run(follow_and_close(OpenAISystem(url))).content) == 3
        finally:
            process.kill()


def test_a_demand_for_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 1"):
        timeline(Costs(1, 1, 1), [Demand(0, 1, 0)])
    with pytest.raises(PhaselineError):
        Costs(1, -1, 1)
