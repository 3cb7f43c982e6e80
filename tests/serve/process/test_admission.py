"""Admission: who is taken, what is told to who is not, and that everybody's share comes back."""

import json
import math
import re
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.serve.door.problems import problem
from phaseline.serve.errors import Overloaded
from phaseline.serve.process.admission import Admission
from support.serve_story import step_report
from support.server import Server, eventually, serving


def read(admission: Admission, seconds: float, *chunks: tuple[str, int, int]) -> None:
    """A step of (request, first position, count)."""
    admission.observe(step_report(0, seconds * 1e3, prefill=list(chunks)))


def learnt(objective: float | None = None, rate: float = 100, max_queue: int = 100) -> Admission:
    """One that knows the rate."""
    admission = Admission(max_queue, objective)
    read(admission, 1, ("before", 0, round(rate)))
    return admission


def taken(admission: Admission, *prompts: int) -> list[bool]:
    """Which of these prompts, one after the other, are taken."""
    return [refusal(admission, f"{prompt}-{n}", prompt) is None for n, prompt in enumerate(prompts)]


def refusal(admission: Admission, name: str, prompt: int, seats: int = 1) -> Overloaded | None:
    try:
        admission.admit(name, prompt, seats)
    except Overloaded as error:
        return error
    return None


requests = st.integers(0, 7).map(str)
events = st.one_of(
    st.tuples(st.just("admit"), requests, st.integers(1, 100), st.integers(1, 3)),
    st.tuples(st.just("read"), requests, st.integers(0, 100), st.integers(1, 60)),
    st.tuples(st.just("release"), requests, st.none(), st.none()),
)


@given(st.lists(events, max_size=40), st.integers(1, 4), st.integers(0, 4))
def test_shares_are_counted_and_come_back(told: list[tuple[str, str, Any, Any]], max_queue: int, seats: int) -> None:
    """Chunks come of requests that are there and of others, again from the start after a preemption."""
    admission = Admission(max_queue)
    admission.start(seats)
    left: dict[str, int] = {}
    begun: dict[str, int] = {}
    asked: dict[str, tuple[int, int]] = {}
    for kind, name, first, second in told:
        if kind == "admit" and name not in asked:
            full = len(asked) - len(begun) >= max_queue + max(0, seats - sum(begun.values()))
            assert (refusal(admission, name, first, second) is not None) == full
            if not full:
                asked[name], left[name] = (first, second), first
        elif kind == "read":
            read(admission, 0.1, (name, first, second))
            if name in asked:
                begun[name], left[name] = asked[name][1], max(0, asked[name][0] - first - second)
        elif kind == "release":
            admission.release(name)
            for known in (asked, left, begun):
                known.pop(name, None)
        assert (admission.waiting, admission.backlog) == (len(asked) - len(begun), sum(left.values()))
    for name in list(asked):
        admission.release(name)
    assert (admission.waiting, admission.backlog) == (0, 0)


def test_as_much_is_taken_as_can_be_read_in_time() -> None:
    assert taken(learnt(objective=4.5), *[100] * 6) == [True] * 4 + [False] * 2
    assert taken(learnt(objective=4.5, rate=200), *[100] * 10) == [True] * 9 + [False]
    assert all(taken(learnt(objective=None), *[100] * 90))


def test_before_anything_was_read_only_the_queue_has_an_end() -> None:
    assert taken(Admission(3, 0.001), *[1000] * 4) == [True] * 3 + [False]


@pytest.mark.parametrize("prompt", [1, 10**6])
def test_who_finds_no_other_prompt_is_taken(prompt: int) -> None:
    admission = learnt(objective=1e-6)
    assert taken(admission, prompt, 1) == [True, False]
    read(admission, 1, (f"{prompt}-0", 0, prompt))  # it is read, and decodes
    assert taken(admission, prompt) == [True]


def test_a_long_prompt_keeps_out_long_ones_only() -> None:
    assert taken(learnt(objective=10), 10_000, 8_000, 400, 600) == [True, False, True, False]


def test_what_is_cached_or_read_makes_room() -> None:
    admission = learnt(objective=10)
    assert taken(admission, 600) == [True]
    error = refusal(admission, "more", 600)
    assert error and error.retry_after_ms == pytest.approx(2000, abs=1)
    read(admission, 1, ("600-0", 320, 80))  # the first 320 were cached
    assert admission.backlog == 200
    assert taken(admission, 600) == [True]


def test_a_queue_has_room_beyond_the_free_seats() -> None:
    admission = Admission(2)
    admission.start(seats=4)
    assert taken(admission, *[10] * 7) == [True] * 6 + [False]
    for n in range(4):
        read(admission, 1, (f"10-{n}", 0, 1))
    assert admission.waiting == 2 and refusal(admission, "more", 10)
    admission.release("10-0")  # a seat is free, and one of the two will have it
    assert refusal(admission, "more", 10) is None and refusal(admission, "most", 10)
    admission.release("10-5")
    assert refusal(admission, "most", 10) is None


@given(
    prompts=st.lists(st.integers(1, 3000), min_size=1, max_size=8),
    prompt=st.integers(1, 3000),
    objective=st.floats(0.5, 30),
)
def test_who_comes_again_when_told_is_taken(prompts: list[int], prompt: int, objective: float) -> None:
    """Prompts are read by the rate that was learnt, the shortest first, and nobody else comes."""
    admission = learnt(objective)
    there = {f"{each}-{n}": each for n, each in enumerate(prompts) if refusal(admission, f"{each}-{n}", each) is None}
    error = refusal(admission, "late", prompt)
    if error is None:
        return
    room = error.retry_after_ms / 1e3 * 100 + 1  # a token more, since the learnt rate is rounded
    assert error.retry_after_ms == 1000 or room < sum(there.values()) + 2
    for name, each in sorted(there.items(), key=lambda one: one[1]):
        count = min(each, math.floor(room))
        room -= count
        if count:
            read(admission, count / 100, (name, 0, count))
    assert refusal(admission, "late", prompt) is None


def test_the_rate_is_of_steps_that_read_prompts_and_follows_them() -> None:
    admission = learnt(rate=100)
    for _ in range(50):
        read(admission, 0.5, ("a", 0, 50))
        read(admission, 5)  # decodes alone
    assert admission.rate == pytest.approx(100)
    for _ in range(200):
        read(admission, 0.5, ("a", 0, 200), ("b", 0, 50))
    assert admission.rate == pytest.approx(500, rel=0.01)
    read(admission, 0.5, ("a", 0, 25))  # one slow step says little
    assert 450 < admission.rate < 500
    read(admission, 0, ("a", 0, 25))  # a clock that stood still says nothing
    assert 450 < admission.rate < 500


def test_short_prompts_say_nothing_of_long_ones() -> None:
    admission = Admission(100, objective=10)
    assert taken(admission, 1) == [True]
    read(admission, 0.1, ("1-0", 0, 1))
    assert admission.rate == pytest.approx(10)  # nothing better is known
    assert taken(admission, 900) == [True]
    read(admission, 1, ("900-0", 0, 500))
    assert admission.rate == pytest.approx(500)
    admission.release("1-0")
    for _ in range(100):
        assert taken(admission, 1) == [True]
        read(admission, 0.1, ("1-0", 0, 1))
        admission.release("1-0")
    assert admission.rate == pytest.approx(500)
    assert taken(admission, 2000) == [True]


def test_another_engine_knows_of_nobody() -> None:
    admission = learnt(objective=1, max_queue=1)
    assert taken(admission, 500, 10) == [True, False]
    admission.start(seats=0)
    assert taken(admission, 500) == [True]
    admission.release("of the former engine")


def test_seconds_are_rounded_up_for_http() -> None:
    assert problem(Overloaded("full", 1001)).headers == {"Retry-After": "2", "retry-after-ms": "1001"}


def metric(server: Server, name: str) -> int:
    found = re.search(rf"^phaseline_{name} (\d+)", server.ask("/metrics").body.decode(), re.MULTILINE)
    assert found
    return int(found[1])


def hold(server: Server, body: Any) -> HTTPConnection:
    """A connection with a request in flight."""
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection


def test_a_server_that_is_full_says_when_to_come_again(tiny: Path) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 30_000, "ignore_eos": True, "stream": True}
    with serving(tiny, "--max-queue", "1", "--max-running", "1") as server:
        runs = hold(server, body)
        eventually(lambda: metric(server, "requests_running"))
        waits = hold(server, body)
        eventually(lambda: metric(server, "requests_waiting"))
        refused = server.ask("/v1/completions", body)
        assert refused.status == 429 and refused.json["error"]["code"] == "overloaded"
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("1", "1000")
        runs.close()
        waits.close()
        eventually(lambda: server.ask("/v1/completions", body | {"stream": False, "max_tokens": 1}).status == 200)


def test_a_server_that_would_be_late_says_so(tiny: Path) -> None:
    with serving(tiny, "--max-queue", "1", "--ttft-objective", "0.001") as server:
        few, long = ({"model": "tiny", "max_tokens": 1, "prompt": prompt} for prompt in ([[5], [6], [7]], [5] * 30_000))
        assert server.ask("/v1/completions", few).status == 200  # three at once, since seats are free
        held = hold(server, long)
        eventually(lambda: metric(server, "prefill_tokens_queued"))
        refused = server.ask("/v1/completions", long)
        assert refused.status == 429 and "in time" in refused.json["error"]["message"]
        held.close()
