"""Schedules over a program that carries a recurrent state beside keys and values, on the reference executor.

The operation is made up; what it carries depends on every token and on their order, so that a state lost, doubled, or
taken from another sequence changes every row behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.engine.types import Request, SamplingParams
from phaseline.execute.base import Executor
from phaseline.execute.reference import ReferenceExecutor
from phaseline.files.base import TensorInfo
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Attend, Context, Cost, Work
from phaseline.program.state import PagedKV, Recurrent, StateSpec
from phaseline.program.step import Segment, Step
from support.memory_file import MemoryFile
from support.schedules import Alone, Bench
from support.small_programs import Small

VOCAB, WIDTH, EVERY, POOL, CONTEXT = 48, 48, 64, 40, 640


@dataclass(frozen=True, eq=False, slots=True)
class Carry:
    """out = s; s = s / 2 turned by one place, plus x: row after row, from what the sequence carries."""

    x: Value
    out: Value
    group: int

    def describe(self) -> str:
        return f"{self.out.name} = carry({self.x.name})"

    def weights(self) -> tuple[TensorInfo, ...]:
        return ()

    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    def cost(self, work: Work) -> Cost:
        return Cost()

    def reference(self, ctx: Context) -> None:
        x, carried = ctx.values[self.x], ctx.state[self.group]["carried"]
        out = np.empty_like(x)
        for slot, _, first, n in ctx.spans:
            read, write = ctx.pages[self.group][slot, :2]
            s = carried[read, 0] if read >= 0 else np.zeros(x.shape[1], x.dtype)
            for row in range(first, first + n):
                s = np.roll(s / 2, 1) + x[row]
                out[row] = s
            carried[write, 0] = s
        ctx.values[self.out] = out


def executor(*groups: str) -> ReferenceExecutor:
    """A program of one operation on each group, one behind the other."""
    specs: dict[str, StateSpec] = {
        "attend": PagedKV(1, 1, WIDTH),
        "carry": Recurrent(1, (("carried", (WIDTH,)),), EVERY),
    }
    small = Small(MemoryFile(), [specs[group] for group in groups])
    x = small.input("x", np.random.default_rng(0).normal(size=(VOCAB, WIDTH)).astype(np.float32))
    for g, group in enumerate(groups):
        out = Value(group, Rows.TOKENS, WIDTH)
        small.builder.add(Attend(x, x, x, out, 0, 1, 1, WIDTH, 1.0, g) if group == "attend" else Carry(x, out, g))
        x = out
    return ReferenceExecutor(small.file, small.finish([x], VOCAB), POOL, np.float64)


@dataclass
class Backend:
    executor: Executor
    alone: Alone

    def bench(self, chunk: int = 48, pages: int | Sequence[int] = POOL, **options: int) -> Bench:
        return Bench(self.executor, chunk=chunk, pages=pages, context=CONTEXT, **options)

    def check(self, bench: Bench, batch: list[Request], every: int = 0) -> None:
        """Each request gets what it gets alone. Only its tokens: attention's sums in numpy depend on the chunk."""
        self.alone.check(batch, bench.run(batch, every=every), bits=False)
        bench.table.clear_cache()
        bench.check_idle()


@pytest.fixture(scope="module", params=[("carry",), ("carry", "attend")], ids="-".join)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = executor(*request.param)
    yield Backend(made, Alone(made, POOL, CONTEXT))


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCAB, length)]


def request(name: str, tokens: list[int], max_tokens: int = 6, n: int = 1) -> Request:
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens, n=n, seed=1, temperature=1.0, ignore_eos=True))


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 1000])
def test_chunks_end_where_snapshots_are_kept_and_change_nothing(backend: Backend, chunk: int) -> None:
    bench = backend.bench(chunk)
    backend.check(bench, [request("r", prompt(150)), request("s", prompt(70, seed=1))])
    for step in bench.recorder.steps:
        for segment in step.segments:
            assert segment.start // EVERY == (segment.start + len(segment.tokens) - 1) // EVERY


@pytest.mark.parametrize(("length", "cached"), [(64, 0), (65, 64), (128, 64), (129, 128), (150, 128)])
def test_a_prefix_is_resumed_at_a_snapshot(backend: Backend, length: int, cached: int) -> None:
    bench = backend.bench(chunk=100)
    bench.run([request("first", prompt(200))])
    backend.check(bench, [request("again", prompt(200)[:length])])
    assert bench.recorder.answers["again", 0].cached == cached


def test_completions_of_one_prompt_carry_on_from_it_each_by_itself(backend: Backend) -> None:
    bench = backend.bench()
    backend.check(bench, [request("three", prompt(45), max_tokens=30, n=3), request("one", prompt(45))])
    assert len({tuple(bench.recorder.answers["three", i].tokens) for i in range(3)}) == 3


def test_preemption_in_a_pool_too_small_for_all(backend: Backend) -> None:
    bench = backend.bench(pages=[3, POOL][: len(backend.executor.program.state)])  # two hold four while they run
    backend.check(bench, [request(name, prompt(40 + i, seed=i), max_tokens=60) for i, name in enumerate("abc")])
    assert bench.preempted


@settings(max_examples=40)
@given(
    lengths=st.lists(st.sampled_from([1, 31, 32, 33, 63, 64, 65, 100]), min_size=1, max_size=5),
    chunk=st.integers(1, 150),
    pages=st.integers(5, 12),
    max_running=st.integers(2, 5),
    every=st.integers(0, 3),
)
def test_any_schedule_gives_each_request_what_it_gets_alone(
    backend: Backend, lengths: list[int], chunk: int, pages: int, max_running: int, every: int
) -> None:
    batch = [request(f"r{i}", prompt(n), max_tokens=(1, 9, 35)[i % 3], n=1 + i % 2) for i, n in enumerate(lengths)]
    backend.check(backend.bench(chunk, pages, max_running=max_running), batch, every)


def test_an_executor_that_loses_what_it_carries_is_found_out() -> None:
    """The negative control: a step that reads nothing begins from zeros."""

    class Forgetful(ReferenceExecutor):
        def forward(self, step: Step, pages: np.ndarray) -> np.ndarray:
            lost = pages.copy()
            lost[:, :, 0] = -1
            return super().forward(step, lost)

    made, asked = executor("carry"), [request("r", prompt(100))]
    backend = Backend(made, Alone(made, POOL, CONTEXT))
    backend.check(backend.bench(), asked)
    made.__class__ = Forgetful
    with pytest.raises(AssertionError):
        backend.check(backend.bench(), asked)


def test_a_step_that_is_run_twice_carries_on_once() -> None:
    made = executor("carry")
    pages = np.array([[[-1, 0]]], np.int32)
    first = made.forward(Step([Segment(0, 0, [1, 2, 3])]), pages)
    assert np.array_equal(made.forward(Step([Segment(0, 0, [1, 2, 3])]), pages), first)
    pages[0, 0] = 0, 1
    second = made.forward(Step([Segment(0, 3, [4])]), pages)
    assert np.array_equal(made.forward(Step([Segment(0, 3, [4])]), pages), second)
