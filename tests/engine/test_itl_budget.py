"""The ITL budget: chunks that fit beside decode rows, on a machine whose cost is known."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline import SamplingParams, load
from phaseline.engine.policy import LEAST, ItlBudget
from phaseline.engine.scheduler import Plan, Scheduler
from phaseline.engine.step_cost import Reach, StepCost, step_rows
from phaseline.engine.types import Request
from phaseline.errors import PhaselineError, RequestError, UnsupportedError
from phaseline.program.step import Step
from phaseline.state.pages import PageTable
from support.tiny import write_llama

PAGE, CONTEXT = 32, 8192


class Machine:
    """Runs plans at a known cost (seconds per step_rows) and holds each against what the scheduler promises."""

    def __init__(
        self, costs: tuple[float, ...], chunk: int, ms: float, max_running: int = 8, reach: Reach | None = None
    ) -> None:
        self.costs = costs
        self.reach = reach or Reach()
        self.noise = lambda: 1.0
        table = PageTable(1024, PAGE, slots=max_running, max_pages=CONTEXT // PAGE)
        self.scheduler = Scheduler(
            table,
            context=CONTEXT,
            chunk=chunk,
            max_running=max_running,
            itl_budget=ItlBudget(ms, StepCost(self.reach)),
        )

    def seconds(self, step: Step) -> float:
        rows = step_rows(step, self.reach)
        return self.noise() * sum(cost * amount for cost, amount in zip(self.costs, rows, strict=True))

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
    assert all(seconds < ms / 1e3 for seconds in mixed)
    assert all(seconds > ms / 1e3 * 0.7 for seconds in mixed[4:-1])  # the first ones learn, the last one has the rest


DEPTHS = {
    "whole": Reach(pair=2e-4),
    "windowed": Reach(((None, 0.2), (512, 0.8)), pair=2e-4),
    "recurrent": Reach(()),
}


@pytest.mark.parametrize("pair", [0, 5e-8, 3e-7], ids=str)  # seconds beyond what the weight of pairs tells: 6e-8
@pytest.mark.parametrize("kind", DEPTHS)
def test_a_prompt_of_the_whole_context_is_read_within_the_budget_at_every_depth(kind: str, pair: float) -> None:
    machine = Machine((4e-3, 1e-3, 1e-6, 3e-4, 1e-4, pair), chunk=512, ms=60, reach=DEPTHS[kind])
    machine.add("victim", 4, 4000)
    for _ in range(20):
        machine.step()
    machine.add("intruder", 8100, 1)
    steps = []
    while machine.scheduler.unread_tokens:
        steps.append(machine.step())
    assert steps[0][1] < 20 and len(steps) > 40
    assert all(seconds < 0.06 for *_, seconds in steps)
    assert all(seconds > 0.04 for *_, seconds in steps[4:-1])


@pytest.mark.parametrize("noise", [0.03, 0.08])
def test_few_steps_of_a_noisy_machine_are_beyond_the_budget(noise: float) -> None:
    rng = random.Random(1)
    machine = Machine(TRUE, chunk=512, ms=50, reach=DEPTHS["whole"])
    machine.noise = lambda: rng.lognormvariate(0, noise)
    machine.add("victim", 4, 4000)
    for _ in range(100):
        machine.step()
    machine.add("intruder", 8100, 1)
    steps = []
    while machine.scheduler.unread_tokens:
        steps.append(machine.step())
    assert sum(seconds > 0.05 for *_, seconds in steps) <= (len(steps) * 0.02 if noise > 0.05 else 0)


def test_a_cached_prefix_is_no_leap_into_the_unknown() -> None:
    """What was read so far lay near the start; at depth a row costs ten times as much."""
    machine = Machine((4e-3, 1e-3, 0, 3e-4, 0, 1e-7), chunk=512, ms=60, reach=Reach(pair=1e-3))
    machine.add("before", 7000, 1)
    machine.run()
    machine.scheduler.itl_budget = ItlBudget(60, StepCost(machine.reach))
    machine.add("victim", 40, 4000)
    machine.step()
    machine.add("shallow", 400, 1)
    for _ in range(20):
        machine.step()
    machine.add("before", 7500, 1)
    assert all(0.03 < machine.step()[2] < 0.07 for _ in range(6))


def test_prompts_share_the_budget_and_come_in_only_when_it_has_room() -> None:
    machine = Machine(TRUE, chunk=512, ms=34)
    machine.add("victim", 40, 400)
    machine.step()
    machine.add("first", 200, 1)
    for _ in range(20):
        machine.step()
    for number in range(6):
        machine.add(str(number), 60, 1)
    decodes, read, seconds = machine.step()
    assert (decodes, len(machine.scheduler.running), len(machine.scheduler.waiting)) == (1, 2, 4)  # one is done
    assert 45 < read < 100 and 0.024 < seconds < 0.03


def reads_beside(machine: Machine, prompt: int, steps: int) -> list[int]:
    """Prompt tokens of each of so many steps, once another prompt joins a stream whose own was `prompt` long."""
    machine.add("victim", prompt, 100)
    for _ in range(10):
        machine.step()
    machine.add("intruder", 2000, 4)
    return [machine.step()[1] for _ in range(steps)]


LEAPS = [LEAST, 4 * LEAST, 16 * LEAST, 64 * LEAST]


def test_the_first_chunk_is_the_least_where_nothing_is_known_of_prompts() -> None:
    machine = Machine(TRUE, chunk=512, ms=60)
    assert reads_beside(machine, 1, 5) == [*LEAPS, pytest.approx(130, abs=10)]


def test_prompts_that_were_read_alone_allow_no_leap_beside_a_stream() -> None:
    """Of one step of many rows nobody can tell what is the step's and what the rows'."""
    machine = Machine(TRUE, chunk=512, ms=60)
    machine.add("alone", 400, 1)
    machine.run()
    assert reads_beside(machine, 100, 4) == LEAPS


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
        params = SamplingParams(max_tokens=120, logprobs=2, temperature=1.0, seed=3, ignore_eos=True)
        engine.submit(Request("victim", PROMPT[:5], params))
        deltas = engine.step()
        engine.submit(Request("intruder", PROMPT, params))
        while engine.has_work:
            deltas += engine.step()
        if engine.scheduler.itl_budget:
            estimate = engine.scheduler.itl_budget.cost.estimate()
            assert estimate.reach == Reach.of(engine.executor.program)
            assert 4 * LEAST <= estimate.most_rows(1.0, 0, 1000) < 8 * LEAST, "nothing was learnt"
        engine.close()
        return chunks, [(d.request_id, d.token_ids, d.logprobs) for d in sorted(deltas, key=lambda d: d.request_id)]

    (whole, plain), (least, kept) = served(), served(itl_budget_ms=1e-6)
    assert whole == [200]
    assert least == [LEAST] * 100
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
