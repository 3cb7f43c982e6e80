"""The schedule does not change the answer.

On the reference executor (float64) every schedule gives the same tokens. On the native one it gives the same bits of
every row of logits, so that sampled tokens agree as well. What each request brings alone, token by token, is the truth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline import _native
from phaseline.engine.types import Request, SamplingParams
from phaseline.execute.base import Executor
from phaseline.execute.native import NativeExecutor
from phaseline.execute.reference import ReferenceExecutor
from phaseline.families import model_program
from phaseline.files.gguf import GGUFFile, open_gguf
from support.deepseek import write_deepseek
from support.models import half_windowed
from support.schedules import Alone, Bench
from support.tiny import write_llama

CHUNKS = [1, 7, 64, 256, 1000]  # the last takes any prompt whole
CONTEXT, PAGE, POOL, VOCAB, WINDOW = 640, 32, 160, 280, 40
POLICIES = ["mixed", "prefill-first", "decode-first"]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "frequency_penalty": 0.3, "repetition_penalty": 1.1}


@dataclass
class Backend:
    """Executors over one tiny model, each made once."""

    file: GGUFFile
    bits: bool  # whether schedules agree to the bit
    windowed: bool = False
    alone: Alone = field(init=False)
    _made: dict[tuple[Any, ...], Executor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alone = Alone(self.executor(), POOL)

    def executor(self, mode: str = "chunk", threads: int = 1, **options: Any) -> Executor:
        wanted = (mode, threads, *options.items()) if self.bits else ()
        if wanted not in self._made:
            program = model_program(self.file)[1]
            if self.windowed:
                program = half_windowed(program, WINDOW)
            self._made[wanted] = (
                NativeExecutor(self.file, program, POOL, max_rows=1100, mode=mode, threads=threads, **options)
                if self.bits
                else ReferenceExecutor(self.file, program, POOL, np.float64)
            )
        return self._made[wanted]

    def check(self, bench: Bench, requests: Sequence[Request], every: int = 0) -> None:
        """Serve the requests on `bench`; each must get what it gets alone."""
        self.alone.check(requests, bench.run(requests, every=every), bits=self.bits)
        bench.table.clear_cache()
        bench.check_idle()


@pytest.fixture(scope="module", params=["reference", "native", "latent", "windowed"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    path = tmp_path_factory.mktemp("schedules") / f"{request.param}.gguf"
    if request.param == "reference":
        write_llama(path, context=CONTEXT, vocab=VOCAB, width=32)  # small enough that BLAS stays on one thread
    elif request.param == "latent":
        write_deepseek(path, context=CONTEXT, vocab=VOCAB, format="Q8_0", layers=2)
    else:  # formats of every kind of kernel: plain, blocks with and without a minimum, super-blocks
        formats = {"attn_q": "Q5_0", "attn_v": "Q4_K", "attn_output": "F16", "ffn_down": "Q6_K", "output": "Q8_0"}
        write_llama(path, context=CONTEXT, vocab=VOCAB, format="Q4_1", formats=formats, width=256, ff=256)
    with open_gguf(path) as file:
        yield Backend(file, bits=request.param != "reference", windowed=request.param == "windowed")


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(2, VOCAB, length)]


def request(name: str, tokens: list[int], max_tokens: int = 4, **params: Any) -> Request:
    return Request(name, tokens, SamplingParams(max_tokens=max_tokens, seed=len(tokens), **params))


def mixed_batch() -> list[Request]:
    """Eight requests of mixed lengths and ways to sample."""
    lengths = (1, 31, 32, 33, 150, 7, 65, 97)
    return [
        request(f"r{i}", prompt(n, seed=i), max_tokens=3 + i, **(SAMPLED if i % 2 else {}))
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_prompts_around_multiples_of_the_chunk(backend: Backend, chunk: int) -> None:
    around = min(chunk, 256)
    most = 2 if around < 256 or backend.bits else 1  # numpy walks long prompts slowly
    for length in sorted({max(1, k * around + d) for k in range(1, most + 1) for d in (-1, 0, 1)}):
        bench = Bench(backend.executor(), chunk=chunk, pages=POOL)
        backend.check(bench, [request("r", prompt(length), **SAMPLED)])
        prefills = [step for step in bench.recorder.steps if step.segments[0].start < length]
        assert len(prefills) == -(-length // chunk)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_row_of_a_prompt_is_the_walks(backend: Backend, chunk: int) -> None:
    scored = request("r", prompt(150), prompt_logprobs=0)
    backend.check(Bench(backend.executor(), chunk=chunk, pages=POOL), [scored])


@pytest.mark.parametrize(
    ("chunk", "policy"), [(1, "mixed"), *((chunk, policy) for chunk in (7, 64, 1000) for policy in POLICIES)]
)
def test_a_batch_of_eight_mixed_lengths(backend: Backend, chunk: int, policy: str) -> None:
    for every, threads in ((0, 1), (2, 2)):
        bench = Bench(backend.executor(threads=threads), chunk=chunk, pages=POOL, policy=policy)
        backend.check(bench, mixed_batch(), every=every)
        assert max(len(step.segments) for step in bench.recorder.steps) > 1


@pytest.mark.parametrize("mode", ["eager", "layer", "chunk"])
@pytest.mark.parametrize("backend", ["native"], indirect=True)
def test_every_way_to_read_a_prompt_is_the_walk_bit_for_bit(backend: Backend, mode: str) -> None:
    for threads, chunk in ((1, 7), (2, 64), (1, 1000)):
        bench = Bench(backend.executor(mode, threads), chunk=chunk, pages=POOL)
        backend.check(bench, mixed_batch())


@pytest.mark.parametrize("options", [{"kv_type": "f32"}, *({"level": level} for level in _native.levels())])
@pytest.mark.parametrize("backend", ["native"], indirect=True)
def test_every_state_and_level_keeps_the_promise(backend: Backend, options: dict[str, Any]) -> None:
    executor = backend.executor(**options)
    alone, batch = Alone(executor, POOL), mixed_batch()
    for chunk in (7, 1000):
        alone.check(batch, Bench(executor, chunk=chunk, pages=POOL).run(batch), bits=True)


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("pages", [1, 2, 5])
def test_a_prefix_hit_at_page_multiples_and_one_off(backend: Backend, pages: int, off: int) -> None:
    length, whole = PAGE * pages + off, prompt(PAGE * pages + 70)
    hit = request("hit", whole[:length], **SAMPLED)
    strayed = request("strayed", [*whole[:length], 5, 6, 7], **SAMPLED)
    bench = Bench(backend.executor(), chunk=64, pages=POOL)
    bench.run([request("first", whole)])
    backend.check(bench, [hit, strayed])
    assert bench.recorder.answers["hit", 0].cached == (length - 1) // PAGE * PAGE
    assert bench.recorder.answers["strayed", 0].cached == length // PAGE * PAGE


def test_what_was_generated_is_a_prefix_too(backend: Backend) -> None:
    bench = Bench(backend.executor(), chunk=64, pages=POOL)
    turn = request("turn", prompt(50), max_tokens=40, ignore_eos=True)
    answer = bench.run([turn])["turn", 0]
    following = request("next", [*turn.prompt, *answer.tokens, 5, 6])
    backend.check(bench, [following])
    assert bench.recorder.answers["next", 0].cached == 64


@pytest.mark.parametrize(
    ("chunk", "policy"), [(1, "mixed"), *((chunk, policy) for chunk in (7, 64) for policy in POLICIES)]
)
def test_preemption_in_a_pool_too_small_for_two(backend: Backend, chunk: int, policy: str) -> None:
    batch = [request(name, prompt(40 + i, seed=i), max_tokens=60, **SAMPLED) for i, name in enumerate("abc")]
    bench = Bench(backend.executor(), chunk=chunk, pages=5, policy=policy)
    backend.check(bench, batch)
    assert bench.preempted


def test_a_prompt_preempted_while_it_is_scored_is_scored_whole(backend: Backend) -> None:
    older = request("older", prompt(30, seed=1), max_tokens=10)
    scored = request("scored", prompt(60), prompt_logprobs=2)
    bench = Bench(backend.executor(), chunk=7, pages=3)
    backend.check(bench, [older, scored], every=2)
    assert bench.preempted
    assert [score and score.token for score in bench.recorder.answers["scored", 0].scores] == [None, *scored.prompt[1:]]


@pytest.mark.parametrize(("pages", "preempts"), [(POOL, False), (6, True)])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_several_completions_of_one_prompt(backend: Backend, chunk: int, pages: int, preempts: bool) -> None:
    batch = [
        request("three", prompt(45), max_tokens=30, n=3, **SAMPLED),
        request("scored", prompt(37, seed=1), max_tokens=20, n=2, prompt_logprobs=0, **SAMPLED),
        request("one", prompt(45), max_tokens=30),
    ]
    bench = Bench(backend.executor(), chunk=chunk, pages=pages)
    backend.check(bench, batch)
    assert bench.preempted == preempts
    drawn = [bench.recorder.answers["three", index].tokens for index in range(3)]
    assert len({tuple(tokens) for tokens in drawn}) == 3


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("backend", ["windowed"], indirect=True)
def test_a_window_takes_no_more_pages_than_it_spans_with_a_chunk(backend: Backend, chunk: int) -> None:
    """A context of twenty pages, beside another, in a sliding group of just what the two hold at once."""
    each = (WINDOW - 1 + chunk + PAGE - 2) // PAGE + 1
    for pages in ([POOL, 2 * each], [POOL, each]):
        bench = Bench(backend.executor(), chunk=chunk, pages=pages)
        backend.check(bench, [request("long", prompt(600), max_tokens=40), request("other", prompt(150, seed=1), 90)])
        assert bench.preempted is (pages[1] == each)


@pytest.mark.parametrize("backend", ["windowed"], indirect=True)
def test_what_a_window_let_go_of_is_a_prefix_while_it_is_cached(backend: Backend) -> None:
    whole = prompt(300)
    again = request("again", [*whole[:200], 5], **SAMPLED)
    for sliding, hit in ((POOL, 192), (5, 0)):
        bench = Bench(backend.executor(), chunk=64, pages=[POOL, sliding])
        bench.run([request("first", whole)])
        backend.check(bench, [again])
        assert bench.recorder.answers["again", 0].cached == hit


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Requests over few distinct prompts, so that prefixes are shared."""
    result = []
    for number in range(draw(st.integers(1, 6))):
        shared, own = draw(st.sampled_from([0, 1, 31, 32, 33, 64, 70])), draw(st.sampled_from([1, 2, 31, 32, 40]))
        tokens = prompt(shared, seed=0) + prompt(own, seed=1)
        params = SAMPLED if draw(st.booleans()) else {}
        result.append(
            Request(
                f"r{number}",
                tokens,
                SamplingParams(
                    max_tokens=draw(st.sampled_from([0, 1, 2, 9, 35])),
                    n=draw(st.sampled_from([1, 1, 1, 2])),
                    prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
                    seed=draw(st.integers(0, 1)),
                    **params,
                ),
            )
        )
    return result


@settings(max_examples=60)
@given(
    batch=requests(),
    chunk=st.integers(1, 40) | st.sampled_from(CHUNKS),
    max_running=st.integers(2, 6),
    pages=st.integers(5, 12) | st.just(POOL),
    policy=st.sampled_from(POLICIES),
    mode=st.sampled_from(["chunk", "eager", "layer"]),
    threads=st.integers(1, 2),
    due=st.lists(st.integers(0, 12), min_size=6, max_size=6),
    aborts=st.dictionaries(st.integers(0, 20), st.integers(0, 5), max_size=2),
)
@pytest.mark.parametrize("backend", ["native", "windowed"], indirect=True)
def test_any_schedule_gives_each_request_what_it_gets_alone(
    backend: Backend,
    batch: list[Request],
    chunk: int,
    max_running: int,
    pages: int,
    policy: str,
    mode: str,
    threads: int,
    due: list[int],
    aborts: dict[int, int],
) -> None:
    executor = backend.executor(mode, threads)
    counts = [pages, 5] if backend.windowed else [pages]  # as many as the longest sequence fills
    bench = Bench(executor, chunk=chunk, pages=counts, max_running=max_running, policy=policy)
    for tick in range(max(due) + 1):
        for arrival, each in zip(due, batch, strict=False):
            if arrival == tick:
                bench.engine.submit(each)
        bench.engine.abort(f"r{aborts.get(tick)}")
        bench.step()
    kept = [each for number, each in enumerate(batch) if number not in aborts.values()]
    for number in aborts.values():
        bench.engine.abort(f"r{number}")
    backend.alone.check(kept, bench.run([]), bits=True)
