"""The ITL budget: chunks that fit beside decode rows, on a machine whose cost is known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline import SamplingParams, load
from phaseline.engine.policy import LEAST, ItlBudget
from phaseline.engine.scheduler import Plan, Scheduler
from phaseline.engine.step_cost import step_rows
from phaseline.engine.types import Request
from phaseline.errors import PhaselineError, RequestError, UnsupportedError
from phaseline.program.step import Step
from phaseline.state.pages import PageTable
from support.tiny import write_llama

PAGE, CONTEXT = 32, 8192


class Machine:
    """Runs plans at a known cost (seconds per step_rows) and holds each against what the scheduler promises."""

    def __init__(self, costs: tuple[float, ...], chunk: int, ms: float, max_running: int = 8) -> None:
        self.costs = costs
        table = PageTable(1024, PAGE, slots=max_running, max_pages=CONTEXT // PAGE)
        self.scheduler = Scheduler(
            table, context=CONTEXT, chunk=chunk, max_running=max_running, itl_budget=ItlBudget(ms)
        )

    def seconds(self, step: Step) -> float:
        return sum(cost * amount for cost, amount in zip(self.costs, step_rows(step), strict=True))

    def add(self, name: str, prompt: int, max_tokens: int, **params: Any) -> None:
        tokens = [hash((name, i)) % 1000 for i in range(prompt)]  # prompts that share no pages
        self.scheduler.add(Request(name, tokens, SamplingParams(max_tokens=max_tokens, **params)))

    def step(self) -> tuple[int, int, float]:
        """(decode rows, prompt tokens, seconds) of the next step."""
        plan = self.scheduler.plan()
        assert plan is not None, "work left and nothing planned"
        prefilling = [sequence.prefilling for sequence in plan.sequences]
        counts = [len(segment.tokens) for segment in plan.step.segments]
        read = sum(n for n, one in zip(counts, prefilling, strict=True) if one)
        unread = sum(s.prefill - s.computed for s in self.scheduler.running if s.prefilling)
        if unread:
            assert read >= min(LEAST, unread, self.scheduler.chunk), "a prompt was starved"
        assert read <= self.scheduler.chunk
        if all(prefilling):
            assert read == min(unread, self.scheduler.chunk), "less was read than could be"
        seconds = self.seconds(plan.step)
        for sequence in self.scheduler.commit(plan, [7] * len(plan.sampled)):
            if sequence.full:
                self.scheduler.finish(sequence)
        self.scheduler.observe(plan, seconds)
        self.scheduler.table.check()
        return len(counts) - sum(prefilling), read, seconds

    def run(self) -> list[tuple[int, int, float]]:
        steps = []
        while self.scheduler.has_work:
            steps.append(self.step())
        return steps


TRUE = (4e-3, 1e-3, 1e-7, 3e-4, 1e-4, 2e-8)


@pytest.mark.parametrize("ms", [20, 30, 60, 100])
def test_steps_stay_below_the_budget_and_use_most_of_it(ms: float) -> None:
    machine = Machine(TRUE, chunk=512, ms=ms)
    machine.add("victim", 40, 400)
    for _ in range(20):
        machine.step()
    machine.add("intruder", 2000, 4)
    steps = [machine.step() for _ in range(150)]
    mixed = [seconds for _, read, seconds in steps if read]
    assert all(seconds <= ms / 1e3 * 1.02 for seconds in mixed)
    assert all(seconds > ms / 1e3 * 0.9 for seconds in mixed[1:-1])  # the first one learns, the last one has the rest


def test_prompts_share_the_budget_and_come_in_only_when_it_has_room() -> None:
    machine = Machine(TRUE, chunk=512, ms=30)
    machine.add("victim", 40, 400)
    machine.add("first", 200, 1)
    for _ in range(20):
        machine.step()
    for number in range(6):
        machine.add(str(number), 60, 1)
    decodes, read, seconds = machine.step()
    assert (decodes, len(machine.scheduler.running), len(machine.scheduler.waiting)) == (1, 2, 4)  # one is done
    assert 60 < read < 120 and 0.027 < seconds < 0.0306


def test_the_first_chunk_is_the_least_where_nothing_is_known_of_prompts() -> None:
    machine = Machine(TRUE, chunk=512, ms=60)
    machine.add("victim", 1, 100)
    for _ in range(10):
        machine.step()
    machine.add("intruder", 2000, 4)
    assert [machine.step()[1] for _ in range(2)] == [LEAST, pytest.approx(170, abs=20)]


def test_whole_chunks_are_read_until_somebody_decodes() -> None:
    machine = Machine(TRUE, chunk=512, ms=1)
    machine.add("a", 1000, 3)
    machine.add("b", 1100, 3)
    assert [machine.step()[1] for _ in range(2)] == [512, 512]
    assert machine.step()[:2] == (1, LEAST)


@settings(max_examples=60)
@given(
    costs=st.tuples(*[st.sampled_from([0.0, 1e-6, 1e-4, 1e-2])] * 6),
    ms=st.sampled_from([1e-3, 5.0, 30.0, 1e6]),
    chunk=st.sampled_from([1, 7, 32, 33, 512]),
    work=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 300), st.integers(0, 12), st.sampled_from([None, 0])), max_size=8
    ),
    max_running=st.integers(1, 4),
)
def test_whatever_a_step_costs_every_prompt_is_read(
    costs: tuple[float, ...], ms: float, chunk: int, work: list[tuple[int, int, int, int | None]], max_running: int
) -> None:
    machine = Machine(costs, chunk, ms, max_running)
    for number, (later, prompt, max_tokens, logprobs) in enumerate(work):
        machine.add(str(number), prompt, max_tokens, prompt_logprobs=logprobs)
        for _ in range(later):
            if machine.scheduler.has_work:
                machine.step()
    machine.run()
    assert machine.scheduler.table.free_pages == 1024


PROMPT = [5 + i * 7 % 300 for i in range(200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("budget") / "tiny.gguf", context=512)


def test_a_budget_changes_the_chunks_and_no_answer(model: Path) -> None:
    def served(**options: Any) -> tuple[list[int], list[Any]]:
        """Prompt tokens of each step beside a stream that decodes, and all that both answers say."""
        engine = load(model, threads=1, chunk=256, **options)
        chunks, plan = [], engine.scheduler.plan

        def watched() -> Plan | None:
            planned = plan()
            if planned and len(planned.sequences) > 1 and planned.sequences[1].prefilling:
                chunks.append(len(planned.step.segments[1].tokens))
            return planned

        engine.scheduler.plan = watched  # type: ignore[method-assign]
        params = SamplingParams(max_tokens=40, logprobs=2, temperature=1.0, seed=3, ignore_eos=True)
        engine.submit(Request("victim", PROMPT[:5], params))
        deltas = engine.step()
        engine.submit(Request("intruder", PROMPT, params))
        while engine.has_work:
            deltas += engine.step()
        if engine.scheduler.itl_budget:
            assert engine.scheduler.itl_budget.cost.estimate().rows_within(1.0, 0) > 100, "nothing was learnt"
        engine.close()
        return chunks, [(d.request_id, d.token_ids, d.logprobs) for d in sorted(deltas, key=lambda d: d.request_id)]

    (whole, plain), (least, kept) = served(), served(itl_budget_ms=1e-6)
    assert whole == [200]
    assert least == [LEAST] * 25
    assert kept == plain


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (lambda: ItlBudget(0), RequestError, "ITL budget = 0 ms: it must be a number above 0"),
        (lambda: ItlBudget(float("nan")), RequestError, "nan"),
        (lambda: ItlBudget(float("inf")), RequestError, "inf"),
        (lambda: ItlBudget(True), RequestError, "True ms"),
        (lambda: load("nowhere.gguf", itl_budget_ms=-1), RequestError, "-1"),  # before any file is looked for
        (lambda: load("nowhere.gguf", itl_budget_ms=5, policy="prefill-first"), UnsupportedError, "policy mixed"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(
    refused: Callable[[], object], error: type[PhaselineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        refused()
