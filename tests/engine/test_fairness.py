"""Who reads first: the shortest, but nobody is late for ever; priorities; and what a long queue costs."""

from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline import SamplingParams, load
from phaseline.engine.scheduler import Scheduler
from phaseline.engine.sequence import Sequence
from phaseline.engine.types import Request
from phaseline.state.pages import PageTable
from support.opcodes import opcodes
from support.tiny import write_llama

PAGE, CONTEXT = 16, 4096


class Crowd:
    """A scheduler with pages for all its seats, whose prompts end with their first token."""

    def __init__(self, chunk: int, seats: int = 40, patience: int | None = None) -> None:
        table = PageTable(seats * CONTEXT // PAGE, PAGE, slots=seats, max_pages=CONTEXT // PAGE)
        self.scheduler = Scheduler(table, context=CONTEXT, chunk=chunk, max_running=seats, patience=patience)
        self.left: set[Sequence] = set()  # who has not had a token yet
        self._numbers = count()

    def add(self, prompt: int, max_tokens: int = 1, n: int = 1, priority: int = 0) -> Sequence:
        number = next(self._numbers)
        tokens = [number, *range(prompt - 1)]  # no two share a page
        params = SamplingParams(max_tokens, n=n)
        sequence, *_ = self.scheduler.add(Request(str(number), tokens, params, priority=priority))
        self.left.add(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        """One step; who read in it, in order."""
        plan = self.scheduler.plan()
        assert plan is not None
        readers = [sequence for sequence in plan.sequences if sequence.prefilling]
        for sequence in self.scheduler.commit(plan, [7] * len(plan.sampled)):
            self.left.discard(sequence)
            if sequence.full:
                self.scheduler.finish(sequence)
        return readers

    def serve(self, sequence: Sequence, bound: int, besides: Callable[[], object]) -> None:
        """Step until `sequence` has its first token; others may read `bound` tokens. Before each step, `besides`."""
        until = self.scheduler.prompt_tokens + sequence.prompt_len + bound
        while sequence in self.left:
            besides()
            self.step()
            assert self.scheduler.prompt_tokens <= until, "it starves"


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 600),
    older=st.lists(st.integers(1, 300), max_size=4),
    younger=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 5)), min_size=1, max_size=6),
    n=st.integers(1, 3),
    at_once=st.integers(1, 8),
    chunk=st.sampled_from([1, 16, 64, 512]),
    seats=st.integers(3, 12),
    patience=st.sampled_from([0, 100, 1000]),
)
def test_a_prompt_is_read_in_time_whatever_comes_after_it(
    length: int,
    older: list[int],
    younger: list[tuple[int, int]],
    n: int,
    at_once: int,
    chunk: int,
    seats: int,
    patience: int,
) -> None:
    """`younger`: a stream without end of prompts and tokens to generate, of which so many are there `at_once`.

    Once it is late, who has a seat may finish, and of each two steps one is for the late, the oldest first.
    """
    crowd, stream = Crowd(chunk, seats, patience), cycle(younger)
    for each in older:
        crowd.add(each)
    late = crowd.add(length, n=n)

    def intrude() -> None:
        while len(crowd.left) < at_once + 1:
            crowd.add(*next(stream))

    seated = seats * max(*older, *(prompt for prompt, _ in younger), length)
    crowd.serve(late, patience + seated + 2 * (sum(older) + length) + 3 * chunk, intrude)


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 200),
    shorter=st.lists(st.integers(1, 200), max_size=4),
    longer=st.lists(st.integers(500, 4000), min_size=1, max_size=4),
    at_once=st.integers(1, 20),
    before=st.integers(0, 30),
    chunk=st.sampled_from([16, 64, 512]),
    patience=st.sampled_from([0, 1000, 10**6]),
)
def test_long_prompts_do_not_hold_up_a_short_one(
    length: int, shorter: list[int], longer: list[int], at_once: int, before: int, chunk: int, patience: int
) -> None:
    """`longer`: lengths of a stream of prompts without end, that has gone on for a while: all of them may be late. They
    are more than twice as long: else one that is late may come to have less left in the steps that are for it.
    """
    crowd, lengths = Crowd(chunk, 40, patience), cycle(longer)

    def intrude() -> None:
        while len(crowd.left) < at_once:
            crowd.add(next(lengths))

    for _ in range(before):
        intrude()
        crowd.step()
    ahead = [min(each, length) for each in shorter]
    lefts = [s.unread if s.slot is None else s.prefill - s.computed for s in crowd.left]
    begun = sum(left for left in lefts if left <= 2 * length + chunk)
    for each in ahead:
        crowd.add(each)
    crowd.serve(crowd.add(length), 2 * (sum(ahead) + begun + length) + 3 * chunk, intrude)


def test_the_shortest_reads_first_and_one_is_finished_before_many_are_begun() -> None:
    crowd = Crowd(chunk=32)
    long, middle, short = (crowd.add(prompt) for prompt in (100, 60, 20))
    assert [crowd.step() for _ in range(5)] == [[short, middle], [middle], [middle, long], [long], [long]]
    assert len(crowd.scheduler.running) == 1


def test_what_is_cached_need_not_be_read() -> None:
    crowd = Crowd(chunk=32)
    asked = crowd.add(200)
    while crowd.left:
        crowd.step()
    (again,) = crowd.scheduler.add(Request("again", [*asked.request.prompt, 1, 2, 3], SamplingParams(1)))
    shorter = crowd.add(30)
    assert crowd.scheduler.unread_tokens == 200 + 3 - 192 + 30
    assert crowd.step() == [again, shorter]
    assert (again.cached, crowd.scheduler.cached_tokens) == (192, 192)


def test_a_late_prompt_reads_in_every_second_step_the_oldest_first() -> None:
    crowd = Crowd(chunk=32, patience=50)
    oldest, old = crowd.add(1000), crowd.add(900)
    readers = []
    for _ in range(12):
        crowd.add(32)
        readers.append(crowd.step()[0])
    assert [reader is oldest for reader in readers] == [False, False, *(False, True) * 5]
    assert old not in readers


def test_what_it_reads_itself_makes_nobody_late() -> None:
    crowd = Crowd(chunk=32, patience=50)
    long = crowd.add(2000)
    assert [crowd.step() for _ in range(20)] == [[long]] * 20
    short = crowd.add(64)
    assert [crowd.step() for _ in range(2)] == [[short], [short]]


def test_who_is_late_and_lacks_seats_gets_the_next_ones() -> None:
    crowd = Crowd(chunk=32, seats=3, patience=40)
    long, late = crowd.add(2000), crowd.add(33, n=2)
    begun = []
    while late in crowd.left:
        crowd.add(8, max_tokens=4)
        begun += [sequence for sequence in crowd.step() if sequence not in (*begun, long)]
        assert len(begun) < 10, "others take every seat that is freed"
    assert begun[-1] is late


def test_priority_comes_before_length_and_age() -> None:
    crowd = Crowd(chunk=32, patience=0)
    low, normal = crowd.add(10, priority=1), crowd.add(200)
    crowd.step()
    high = crowd.add(100, priority=-1)
    order = [reader for _ in range(10) if crowd.left for reader in crowd.step()]
    assert list(dict.fromkeys(order)) == [high, normal, low]


def test_the_lowest_priority_gives_way_and_then_the_youngest() -> None:
    table = PageTable(9, 4, slots=4, max_pages=16)
    scheduler = Scheduler(table, context=64, chunk=64, max_running=4)
    for name, priority in (("low", 1), ("old", 0), ("young", 0), ("high", -1)):
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        scheduler.add(Request(name, [ord(name[0])] * 7, params, priority=priority))
    lost = []
    while scheduler.has_work:
        running = {sequence: sequence.preemptions for sequence in scheduler.running}
        plan = scheduler.plan()
        assert plan is not None
        lost += [sequence.request.id for sequence, n in running.items() if sequence.preemptions > n]
        for sequence in scheduler.commit(plan, [7] * len(plan.sampled)):
            if sequence.full:
                scheduler.finish(sequence)
    assert lost == ["low", "young"]


@pytest.mark.parametrize("patience", [0, 10**6])
def test_a_long_queue_costs_a_step_nothing(patience: int) -> None:
    def steps(waiting: int) -> Iterator[int]:
        crowd = Crowd(chunk=64, seats=4, patience=patience)
        for _ in range(4 + waiting):
            crowd.add(100, 3)
        scheduler = crowd.scheduler
        for number in range(12):
            yield opcodes(crowd.step)
            yield opcodes(lambda: scheduler.unread_tokens + len(scheduler.waiting))
            yield opcodes(lambda number=number: scheduler.abort(str(waiting - number)))

    few, many = list(steps(30)), list(steps(500))
    assert len(few) == len(many)
    assert sum(many) <= sum(few) * 1.02


def test_who_left_is_forgotten() -> None:
    crowd = Crowd(chunk=64)
    line = crowd.scheduler.waiting
    stays = crowd.add(50, priority=-1)
    for _ in range(1000):
        crowd.scheduler.abort(crowd.add(10).request.id)
    assert list(line) == [stays] and line.unread == 50
    assert len(line._by_length) + len(line._by_age) < 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("fairness") / "tiny.gguf", context=1024)


def test_a_short_prompt_among_long_ones_answers_soon(model: Path) -> None:
    with load(model, threads=1, chunk=64) as engine:
        for number in range(6):
            engine.submit(Request(f"long{number}", [5 + number] * 900, SamplingParams(2)))
        deltas = engine.step() + engine.step()
        engine.submit(Request("short", [3] * 90, SamplingParams(2)))
        steps = 0
        while not any(delta.request_id == "short" for delta in deltas):
            deltas = engine.step()
            steps += 1
        assert steps <= 3
