"""Scheduler: what it plans, and that everything accepted ends with its own tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.engine.scheduler import Plan, Scheduler
from phaseline.engine.sequence import Sequence
from phaseline.engine.types import Request, SamplingParams
from phaseline.errors import CapacityError, RequestError, UnsupportedError
from phaseline.program.step import Want
from phaseline.state.pages import PageTable
from support.scheduler_loop import NEVER, Loop, expected, state_of


@dataclass
class Arrival:
    request: Request
    due: int
    abort: int  # step in which it is cancelled
    late: bool  # only when that step has run, before it is committed


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    """Requests over few distinct prompts, so that prefixes are shared."""
    result = []
    for number in range(draw(st.integers(1, 7))):
        prompt = [1] * draw(st.integers(0, 12)) + [2] * draw(st.integers(1, 8))
        params = SamplingParams(
            max_tokens=draw(st.integers(0, 14)),
            n=draw(st.sampled_from([1, 1, 1, 2, 3])),
            prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        )
        salt, priority = draw(st.sampled_from([b"", b"", b"salt"])), draw(st.sampled_from([0, 0, 0, 1, -1]))
        request = Request(f"r{number}", prompt, params, salt, priority=priority)
        abort = draw(st.just(NEVER) | st.integers(0, 20))
        result.append(Arrival(request, draw(st.integers(0, 10)), abort, draw(st.booleans())))
    return result


@settings(max_examples=300, deadline=None)
@given(
    work=arrivals(),
    pages=st.integers(2, 14),
    page_size=st.integers(1, 4),
    chunk=st.integers(1, 9) | st.just(1000),
    max_running=st.integers(1, 5),
    context=st.integers(10, 40),
    policy=st.sampled_from(["mixed", "prefill-first", "decode-first"]),
    interruptions=st.sets(st.integers(0, 30), max_size=6),
    windows=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 14)), max_size=2),
    snapshots=st.none() | st.tuples(st.integers(1, 3), st.integers(1, 12)),
    patience=st.integers(0, 40),
)
def test_everything_accepted_finishes_with_its_own_tokens(
    work: list[Arrival],
    pages: int,
    page_size: int,
    chunk: int,
    max_running: int,
    context: int,
    policy: str,
    interruptions: set[int],
    windows: list[tuple[int, int]],
    snapshots: tuple[int, int] | None,
    patience: int,
) -> None:
    """`windows`: of further state groups, and how many pages each has; `snapshots`: pages from one to the next, and how
    many there are."""
    every = snapshots and snapshots[0] * page_size
    state = state_of((window for window, _ in windows), every)
    counts = [pages, *(count for _, count in windows), *([snapshots[1]] if snapshots else [])]
    table = PageTable(counts, page_size, max_running, -(-context // page_size), state)
    scheduler = Scheduler(
        table, context=context, chunk=chunk, max_running=max_running, policy=policy, patience=patience
    )
    loop = Loop(scheduler, eos=0, windows=[window for window, _ in windows], every=every)
    capacity = table.capacity(chunk)
    accepted: list[Sequence] = []
    for tick in range(NEVER):
        for arrival in work:
            params = arrival.request.params
            least = len(arrival.request.prompt) + (params.max_tokens > 0)
            if arrival.due == tick and (least > min(context, capacity) or params.n > max_running):
                with pytest.raises(CapacityError):
                    scheduler.add(arrival.request)
            elif arrival.due == tick:
                accepted += scheduler.add(arrival.request)
            if arrival.abort == tick and not arrival.late:
                scheduler.abort(arrival.request.id)
        late = [arrival.request.id for arrival in work if arrival.abort == tick and arrival.late]
        if scheduler.has_work:
            loop.step(interrupted=tick in interruptions, aborted=late)
        elif all(arrival.due <= tick for arrival in work):
            break
    assert not scheduler.has_work, "no progress"
    cancellable = {arrival.request.id for arrival in work if arrival.abort < NEVER}
    assert all(sequence in loop.finished or sequence.request.id in cancellable for sequence in accepted)
    for sequence in loop.finished:
        limit = min(sequence.prompt_len + sequence.request.params.max_tokens, context, capacity)
        assert sequence.tokens == expected(sequence, limit, eos=0)
    table.clear_cache()
    assert table.free_pages == sum(counts)


def make(
    pages: int = 64, page_size: int = 4, chunk: int = 8, max_running: int = 4, context: int = 64, policy: str = "mixed"
) -> Loop:
    table = PageTable(pages, page_size, slots=max_running, max_pages=-(-context // page_size))
    return Loop(Scheduler(table, context=context, chunk=chunk, max_running=max_running, policy=policy))


def request(name: str, prompt: list[int] | int, max_tokens: int = 4, **params: int) -> Request:
    tokens = list(range(1, prompt + 1)) if isinstance(prompt, int) else prompt
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens, **params))


def shape(plan: Plan) -> list[tuple[str, int, int]]:
    """(request, start, tokens) of each segment."""
    return [
        (sequence.request.id, segment.start, len(segment.tokens))
        for sequence, segment in zip(plan.sequences, plan.step.segments, strict=True)
    ]


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        ("mixed", [[("a", 3, 1), ("b", 3, 3)], [("a", 4, 1)]]),
        ("prefill-first", [[("b", 3, 3)], [("a", 3, 1)]]),
        ("decode-first", [[("a", 3, 1)], [("a", 4, 1)], [("b", 3, 3)]]),
    ],
)
def test_how_policies_share_steps_the_shortest_first(policy: str, steps: list[list[tuple[str, int, int]]]) -> None:
    loop = make(chunk=4, policy=policy)
    for name, length, max_tokens in (("a", 3, 3), ("b", 6, 1), ("c", 2, 1)):
        loop.scheduler.add(request(name, [ord(name)] * length, max_tokens))
    assert [shape(loop.step()) for _ in range(2)] == [[("c", 0, 2), ("a", 0, 2)], [("a", 2, 1), ("b", 0, 3)]]
    assert [shape(loop.step()) for _ in steps] == steps


def test_prefill_first_decodes_while_the_waiting_prompt_has_no_seat() -> None:
    loop = make(max_running=1, policy="prefill-first")
    loop.scheduler.add(request("a", [5] * 3))
    loop.scheduler.add(request("b", [6] * 3))
    assert [shape(loop.step()) for _ in range(2)] == [[("a", 0, 3)], [("a", 3, 1)]]


def test_prompt_logprobs_want_every_row_and_decline_the_cache() -> None:
    loop = make(chunk=8)
    loop.scheduler.add(request("a", 12))
    loop.run()
    (sequence,) = loop.scheduler.add(request("b", 12, prompt_logprobs=1))
    plans = [loop.step() for _ in range(3)]
    assert [plan.step.segments[0].want for plan in plans] == [Want.ALL, Want.ALL, Want.LAST]
    assert [plan.rows for plan in plans] == [[], [3], [0]]
    assert sequence.cached == 0


@pytest.mark.parametrize(("length", "cached"), [(11, 8), (12, 8), (13, 12)])
def test_a_prefix_hit_at_exact_page_multiples_and_one_off(length: int, cached: int) -> None:
    loop = make(chunk=64)
    loop.scheduler.add(request("a", 16))
    loop.run()
    (sequence,) = loop.scheduler.add(request("b", length))
    assert shape(loop.step()) == [("b", cached, length - cached)]
    assert sequence.cached == cached


@pytest.mark.parametrize("steps_before", [0, 1])  # of two steps one is for who is late
def test_who_is_preempted_resumes_first_and_samples_nothing_twice(steps_before: int) -> None:
    loop = make(pages=4, page_size=4, chunk=64)
    for _ in range(steps_before):
        loop.scheduler.add(request("before", [9], max_tokens=1))
        loop.run()
    loop.finished.clear()
    for name in "ab":
        loop.scheduler.add(request(name, [ord(name)] * 7, max_tokens=5))
    assert shape(loop.step()) == [("a", 0, 7), ("b", 0, 7)]
    loop.scheduler.add(request("c", [ord("c")], max_tokens=1))  # shorter, and would have a seat, but no page
    loop.step()  # both pages of both are full
    assert shape(loop.step()) == [("a", 8, 1)]
    (c, b) = loop.scheduler.waiting
    assert loop.scheduler.preemptions == 1
    assert (b.request.id, c.request.id, b.preemptions, len(b.generated)) == ("b", "c", 1, 2)
    while b.slot is None:
        back = shape(loop.step())
    assert back == [("b", 4, 5), ("c", 0, 1)]
    done = {sequence.request.id: sequence for sequence in loop.run()}
    assert [len(done[name].tokens) for name in "abc"] == [12, 12, 2]
    assert all(sequence.tokens == expected(sequence, sequence.limit) for sequence in done.values())
    assert b.cached == 0  # what its own pages saved it on resuming is not a cached prompt


@pytest.mark.parametrize(
    ("lengths", "snapshots", "steps"),
    [
        # a younger one may decode while an older one still reads, since chunks end at snapshots
        ((12, 4), 3, [[("b", 0, 4), ("a", 0, 4)], [("a", 4, 4)], [("a", 8, 4)]]),
        # c would have read behind b
        (
            (8, 12, 16),
            4,
            [[("a", 0, 4), ("b", 0, 4), ("c", 0, 4)], [("a", 4, 4), ("b", 4, 4)], [("a", 8, 1), ("b", 8, 4)]],
        ),
    ],
)
def test_who_is_preempted_by_an_older_prompt_leaves_the_step(
    lengths: tuple[int, ...], snapshots: int, steps: list[list[tuple[str, int, int]]]
) -> None:
    """Each sequence holds two snapshots in a step, and there are too few for all to have both."""
    state = state_of([], every=4)
    table = PageTable([64, snapshots], 4, slots=3, max_pages=16, state=state)
    loop = Loop(Scheduler(table, context=64, chunk=16, max_running=3), every=4)
    for name, length in zip("abc", lengths, strict=False):
        loop.scheduler.add(request(name, [ord(name)] * length))
    assert [shape(loop.step()) for _ in steps] == steps
    assert [s.request.id for s in loop.scheduler.waiting] == ["abc"[len(lengths) - 1]]


def test_a_prompt_that_gives_way_is_not_begun_again_before_there_is_more_room() -> None:
    state = state_of([8])
    table = PageTable([64, 5], 4, slots=2, max_pages=16, state=state)
    loop = Loop(Scheduler(table, context=64, chunk=8, max_running=2), windows=[8])
    loop.scheduler.add(request("old", [1] * 8, max_tokens=8))
    loop.scheduler.add(request("new", [2] * 24, max_tokens=1, prompt_logprobs=0))  # declines the cache
    plans = [shape(loop.step()) for _ in range(4)]
    assert plans[1:] == [[("old", 8, 1), ("new", 0, 8)], [("old", 9, 1)], [("old", 10, 1)]]
    done = loop.run()
    assert [s.request.id for s in done] == ["old", "new"]


def test_a_prompt_is_prefilled_once_for_all_its_completions() -> None:
    loop = make(chunk=4)
    sequences = loop.scheduler.add(request("a", 6, n=3))
    assert shape(loop.step()) == [("a", 0, 4)]
    plan = loop.step()
    assert shape(plan) == [("a", 4, 2)]
    assert (plan.sampled, plan.rows) == (sequences, [0, 0, 0])
    assert loop.scheduler.running == sequences
    plan = loop.step()
    assert shape(plan) == [("a", 6, 1)] * 3
    assert len(plan.copies) == 2  # the last one writes in the shared page itself
    assert len({tuple(s.tokens) for s in sequences}) == 3


def test_cached_tokens_count_once_for_all_completions_and_not_again_on_resuming() -> None:
    loop = make(pages=6, chunk=64)
    loop.scheduler.add(request("before", 9, max_tokens=1))
    loop.run()
    sequences = loop.scheduler.add(request("a", 9, max_tokens=9, n=2))
    loop.run()
    assert loop.scheduler.preemptions > 0
    assert [sequence.cached for sequence in sequences] == [8, 8]
    assert loop.scheduler.cached_tokens == 8


@pytest.mark.parametrize("prompt_logprobs", [None, 0])
@pytest.mark.parametrize("n", [1, 2])
def test_no_tokens_asked_for_ends_with_the_prefill(n: int, prompt_logprobs: int | None) -> None:
    loop = make(chunk=4)
    sequences = loop.scheduler.add(
        Request("a", list(range(1, 7)), SamplingParams(max_tokens=0, n=n, prompt_logprobs=prompt_logprobs))
    )
    assert loop.run() == sequences
    assert all(s.tokens == list(range(1, 7)) for s in sequences)
    assert loop.scheduler.table.free_pages == loop.scheduler.table.pages


@pytest.mark.parametrize(
    ("length", "max_tokens", "fits"), [(15, 1, True), (16, 0, True), (16, 1, False), (17, 0, False), (17, 1, False)]
)
@pytest.mark.parametrize("bound", ["context", "page pool"])
def test_prompts_around_the_limit(bound: str, length: int, max_tokens: int, fits: bool) -> None:
    loop = make(context=16) if bound == "context" else make(pages=4, page_size=4, context=64)
    if fits:
        loop.scheduler.add(request("a", length, max_tokens))
        (sequence,) = loop.run()
        assert len(sequence.tokens) == length + max_tokens
    else:
        most = 15 if max_tokens else 16
        with pytest.raises(CapacityError, match=rf"prompt of {length} tokens.*{bound}.* holds 16 .*at most {most}"):
            loop.scheduler.add(request("a", length, max_tokens))
        assert not loop.scheduler.has_work


def test_generation_ends_where_the_context_or_the_pool_ends() -> None:
    for loop in (make(context=16), make(pages=4, page_size=4)):
        (sequence,) = loop.scheduler.add(Request("a", [1, 2, 3], SamplingParams(max_tokens=100)))
        while not sequence.full:
            plan = loop.scheduler.plan()
            assert plan is not None
            loop.scheduler.commit(plan, [7] * len(plan.sampled))
        assert len(sequence.tokens) == 16
        loop.scheduler.finish(sequence)


def test_ids_are_unique_among_live_requests_only() -> None:
    loop = make()
    loop.scheduler.add(request("a", 3))
    with pytest.raises(RequestError, match="'a' is in use"):
        loop.scheduler.add(request("a", 3))
    loop.run()
    loop.scheduler.add(request("a", 3))


def test_abort_gives_pages_back_at_once_and_harms_nobody() -> None:
    loop = make(chunk=8, max_running=2)
    kept, *_ = loop.scheduler.add(request("kept", 4))
    loop.scheduler.add(request("running", [9] * 30))
    loop.scheduler.add(request("queued", [8] * 6))
    loop.step()
    assert loop.scheduler.abort("running") and loop.scheduler.abort("queued")
    assert not loop.scheduler.abort("running")
    assert not loop.scheduler.abort("never")
    assert loop.scheduler.table.free_pages == loop.scheduler.table.pages - 1
    assert loop.run() == [kept]


def test_a_sequence_aborted_after_its_step_ran_gains_nothing() -> None:
    loop = make()
    (gone,), (kept,) = (loop.scheduler.add(request(name, [ord(name)] * 3)) for name in "ab")
    plan = loop.scheduler.plan()
    assert plan is not None
    loop.scheduler.abort("a")
    assert loop.scheduler.commit(plan, [7, 8]) == [kept]
    assert (gone.generated, kept.generated) == ([], [8])


def test_abort_before_the_fork_takes_all_completions() -> None:
    loop = make(chunk=2)
    loop.scheduler.add(request("a", 6, n=3))
    loop.step()
    assert loop.scheduler.abort("a")
    assert not loop.scheduler.has_work
    assert loop.scheduler.table.free_pages == loop.scheduler.table.pages


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (lambda: make(policy="fastest"), UnsupportedError, "'fastest'.*mixed, prefill-first, decode-first"),
        (lambda: make(chunk=0), CapacityError, "chunk = 0"),
        (lambda: make(max_running=0), CapacityError, "max_running = 0"),
        (lambda: make().scheduler.add(request("a", 3, n=5)), CapacityError, "n = 5.*max_running = 4"),
    ],
)
def test_what_can_never_run_is_refused(refused: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        refused()


def test_an_idle_scheduler_plans_nothing() -> None:
    loop = make()
    assert not loop.scheduler.has_work
    assert loop.scheduler.plan() is None
