"""What the loop tells of its steps: sinks, progress, rows and counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.engine.engine import Engine
from phaseline.engine.types import Delta, FinishReason, Progress, Request
from phaseline.errors import RequestError
from support.engines import assert_idle, bystander, drain, make_engine, meddler, sampled, tokens_of
from support.opcodes import opcodes
from support.tiny import write_llama

PROMPT = list(range(40, 90))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("loop") / "tiny.gguf", context=1024)


@pytest.fixture
def engine(model: Path) -> Engine:
    return make_engine(model)


def told(engine: Engine, request: Request) -> list[Any]:
    """What the sink of a request is given, to its end."""
    items: list[Any] = []
    engine.submit(request, items.append)
    assert drain(engine) == []  # nobody else is told
    return items


def test_a_sink_gets_what_step_would_return(engine: Engine) -> None:
    engine.submit(Request("r", PROMPT, sampled(n=2)))
    expected = drain(engine)
    engine.scheduler.table.clear_cache()
    assert told(engine, Request("r", PROMPT, sampled(n=2))) == expected
    assert_idle(engine)


def test_a_failure_reaches_each_sink_once(engine: Engine) -> None:
    inboxes: list[list[Any]] = [[], [], []]
    for number, inbox in enumerate(inboxes):
        engine.submit(Request(str(number), PROMPT[number:], sampled(n=2)), inbox.append)

    def fail(_: object) -> None:
        raise ZeroDivisionError

    meddler(engine).before = fail
    assert drain(engine) == []
    assert [[type(item) for item in inbox] for inbox in inboxes] == [[ZeroDivisionError]] * 3
    assert engine.last_step is None
    meddler(engine).before = lambda step: None
    assert_idle(engine)


def test_a_row_without_an_answer_ends_its_own_request_alone(engine: Engine) -> None:
    with bystander(engine) as deltas:
        inbox: list[Any] = []
        engine.submit(Request("bad", [7] * 5, sampled(n=2)), inbox.append)

        def spoil(logits: Any) -> Any:
            rows = logits.copy()
            rows[-1] = np.nan  # of the prompt, which reads last
            return rows

        meddler(engine).after = spoil
        deltas += engine.step()
        meddler(engine).after = lambda logits: logits
        (error,) = inbox
        assert "no token can be sampled" in str(error)


def test_progress_is_told_chunk_by_chunk_before_the_first_token(engine: Engine) -> None:
    items = told(engine, Request("r", PROMPT, sampled(3), progress=True))
    progress = [item for item in items if isinstance(item, Progress)]
    assert items[: len(progress)] == progress
    assert [(p.request_id, p.done, p.total, p.cached) for p in progress] == [
        ("r", done, 50, 0) for done in (16, 32, 48, 50)
    ]
    assert [p.seconds for p in progress] == sorted(p.seconds for p in progress)
    assert progress[0].seconds > 0


def test_progress_counts_what_the_cache_knew(engine: Engine) -> None:
    told(engine, Request("r", PROMPT, sampled(1)))
    items = told(engine, Request("r", PROMPT, sampled(1), progress=True))
    assert [(p.done, p.total, p.cached) for p in items if isinstance(p, Progress)] == [(48, 50, 32), (50, 50, 32)]


def test_progress_of_a_prompt_that_gives_way_and_begins_again(model: Path) -> None:
    engine = make_engine(model, pages=6)
    told_of: list[Any] = []
    engine.submit(Request("first", PROMPT, sampled(100)))
    deltas = [*engine.step(), *engine.step()]
    engine.submit(Request("r", list(range(200, 290)), sampled(4), progress=True), told_of.append)
    deltas += drain(engine)
    done = [item.done for item in told_of if isinstance(item, Progress)]
    assert done[-1] == 90 and max(done) == 90
    assert len(tokens_of(deltas, "first")) == 100
    assert sum(len(item.token_ids) for item in told_of if isinstance(item, Delta)) == 4


def test_progress_needs_somebody_to_be_told(engine: Engine) -> None:
    with pytest.raises(RequestError, match="progress = True"):
        engine.submit(Request("r", PROMPT, sampled(), progress=True))
    assert_idle(engine)


def test_rows_of_a_step_are_those_of_its_plan(engine: Engine) -> None:
    assert engine.last_step is None
    engine.submit(Request("a", PROMPT[:20], sampled(9, n=2)))
    engine.step()
    assert engine.last_step and (engine.last_step.prefill, engine.last_step.decode) == ([("a", 0, 16)], [])
    engine.step()
    engine.submit(Request("b", PROMPT[20:], sampled(9)))
    engine.step()
    rows = engine.last_step
    assert rows and (rows.prefill, rows.decode) == ([("b", 0, 16)], [("a", 0), ("a", 1)])
    assert rows.seconds > 0
    engine.abort("a")
    engine.abort("b")
    engine.step()
    assert engine.last_step is None


def test_counts_tell_what_waits_and_what_is_left_to_read(engine: Engine) -> None:
    for number in range(6):
        engine.submit(Request(str(number), [number, *PROMPT[1:]], sampled(30)))
    assert (engine.counts.running, engine.counts.waiting, engine.counts.queued_prefill_tokens) == (0, 6, 300)
    engine.step()
    counts = engine.counts
    assert (counts.running, counts.waiting, counts.queued_prefill_tokens) == (1, 5, 284)
    assert sum(counts.free_pages) < engine.scheduler.table.pages
    engine.abort("5")
    assert engine.counts.queued_prefill_tokens == 234
    drain(engine)
    told(engine, Request("again", [0, *PROMPT[1:]], sampled(1)))
    counts = engine.counts
    assert (counts.running, counts.waiting, counts.queued_prefill_tokens, counts.cached_tokens) == (0, 0, 0, 32)


def test_a_long_queue_costs_the_loop_nothing(model: Path) -> None:
    def cost(waiting: int) -> int:
        engine = make_engine(model)
        for number in range(4):
            engine.submit(Request(f"runs {number}", [number, 50, 60], sampled(200)))
        for _ in range(3):  # until all seats are taken by streams
            engine.step()
        for number in range(waiting):
            engine.submit(Request(str(number), PROMPT, sampled()))
        executed = 0
        for number in range(8):
            executed += opcodes(engine.step) + opcodes(lambda: engine.counts)
            engine.abort(str(number))
        return executed

    few, many = cost(8), cost(500)
    assert many <= few * 1.02


def test_an_abort_finds_its_own_deltas_sink(engine: Engine) -> None:
    inbox: list[Any] = []
    engine.submit(Request("r", PROMPT, sampled(n=3)), inbox.append)
    engine.step()
    engine.abort("r")
    assert [(d.index, d.finish_reason) for d in inbox] == [(i, FinishReason.ABORT) for i in range(3)]
    assert_idle(engine)
