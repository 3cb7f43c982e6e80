"""Schedules over models that carry a recurrent state, alone or beside keys and values or latents.

On the reference executor the operation is made up: what it carries depends on every token and on their order, so that a
state lost, doubled, or taken from another sequence changes every row behind it. On the native one it is that of Kimi
Linear or Kimi K3, and each request gets exactly the logits that it gets alone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.engine.types import Request, SamplingParams
from phaseline.execute.base import Executor
from phaseline.execute.native import NativeExecutor
from phaseline.execute.reference import ReferenceExecutor
from phaseline.families import model_program
from phaseline.files.base import TensorInfo
from phaseline.files.gguf import open_gguf
from phaseline.program.ir import Rows, Value
from phaseline.program.ops import Attend, Context, Cost, Work
from phaseline.program.state import PagedKV, Recurrent, StateSpec
from phaseline.program.step import Segment, Step
from support.kimi import write_kimi
from support.kimi_k3 import write_kimi_k3
from support.memory_file import MemoryFile
from support.schedules import Alone, Bench
from support.small_programs import Small

VOCAB, WIDTH, EVERY, POOL, CONTEXT = 48, 48, 64, 40, 640
SIZES: dict[str, Any] = {"format": "F16", "dim": 24, "width": 96, "value": 24, "context": CONTEXT}
NATIVE: dict[str, Callable[[Path], Path]] = {
    "native": partial(write_kimi, recurrent=(True, True), dense=3, **SIZES),
    "native beside latents": partial(write_kimi, recurrent=(True, False, True), dense=3, **SIZES),
    "native kimi k3": partial(write_kimi_k3, layers=3, latent_layers=(1,), dense=2, **SIZES),
}


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
    """Executors over one model; all but the first run the same program in other ways."""

    executors: list[Executor]

    def __post_init__(self) -> None:
        self.bits = isinstance(self.executors[0], NativeExecutor)
        self.alone = Alone(self.executors[0], POOL, CONTEXT)

    def bench(self, chunk: int = 48, snapshots: int = POOL, way: int = 0, **options: int) -> Bench:
        """On a pool of so many snapshots, and plenty of everything else."""
        executor = self.executors[way % len(self.executors)]
        pages = [snapshots if isinstance(spec, Recurrent) else POOL for spec in executor.program.state]
        return Bench(executor, chunk=chunk, pages=pages, context=CONTEXT, **options)

    def check(self, bench: Bench, batch: list[Request], every: int = 0) -> None:
        """Each request gets what it gets alone; in numpy only its tokens, as attention's sums depend on the chunk."""
        bench.run(batch, every=every)
        self.check_rest(bench, batch)

    def check_rest(self, bench: Bench, batch: list[Request]) -> None:
        """The same of requests that are in service already."""
        self.alone.check(batch, bench.run([]), bits=self.bits)
        bench.table.clear_cache()
        bench.check_idle()


@pytest.fixture(scope="module", params=["carry", "carry-attend", *NATIVE])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    if request.param not in NATIVE:
        yield Backend([executor(*request.param.split("-"))])
        return
    path = tmp_path_factory.mktemp("carried") / "tiny.gguf"
    with open_gguf(NATIVE[request.param](path)) as file, ExitStack() as stack:
        program = model_program(file)[1]
        state = [replace(s, every=EVERY) if isinstance(s, Recurrent) else s for s in program.state]
        program, made = replace(program, state=state), []
        for threads, mode in ((1, "chunk"), (2, "chunk"), (2, "layer"), (1, "eager")):
            made.append(NativeExecutor(file, program, POOL, max_rows=1100, threads=threads, mode=mode))
            stack.callback(made[-1].close)
        yield Backend([*made])


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
    bench = backend.bench(snapshots=3)  # two hold four while they run
    backend.check(bench, [request(name, prompt(40 + i, seed=i), max_tokens=60) for i, name in enumerate("abc")])
    assert bench.preempted


@settings(max_examples=40)
@given(
    lengths=st.lists(st.sampled_from([1, 31, 32, 33, 63, 64, 65, 100]), min_size=1, max_size=5),
    chunk=st.integers(1, 150),
    snapshots=st.integers(5, 12),
    max_running=st.integers(2, 5),
    every=st.integers(0, 3),
    way=st.integers(0, 3),
    aborts=st.dictionaries(st.integers(0, 12), st.integers(0, 4), max_size=2),
)
def test_any_schedule_gives_each_request_what_it_gets_alone(
    backend: Backend,
    lengths: list[int],
    chunk: int,
    snapshots: int,
    max_running: int,
    every: int,
    way: int,
    aborts: dict[int, int],
) -> None:
    """Of prompts that share prefixes, come while others decode, and are given up or cancelled at any time."""
    batch = [request(f"r{i}", prompt(n), max_tokens=(1, 9, 35)[i % 3], n=1 + i % 2) for i, n in enumerate(lengths)]
    bench = backend.bench(chunk, snapshots, way, max_running=max_running)
    for number, each in enumerate(batch):
        bench.engine.submit(each)
        for tick in range(every * number, every * (number + 1)):
            bench.engine.abort(f"r{aborts.get(tick)}")
            bench.step()
    for number in aborts.values():
        bench.engine.abort(f"r{number}")
    backend.check_rest(bench, [each for number, each in enumerate(batch) if number not in aborts.values()])


def test_an_executor_that_loses_what_it_carries_is_found_out(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a step that reads nothing begins from zeros."""
    made, asked = backend.executors[0], [request("r", prompt(100))]
    recurrent = [isinstance(spec, Recurrent) for spec in made.program.state]
    whole = made.forward

    def forgetful(step: Step, pages: np.ndarray) -> np.ndarray:
        lost = pages.copy()
        lost[recurrent, :, 0] = -1
        return whole(step, lost)

    backend.check(backend.bench(), asked)
    monkeypatch.setattr(made, "forward", forgetful)
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
