"""Costs: counted by hand on small steps, added up over chunks, and checked against what is known of a real model."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.lab.metrics import chunk_schedule
from phaseline.program.cost import decode_work, op_costs, prefill_work, prompt_cost, step_cost, weight_bytes
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import Attend, Cost, Embed, Linear, Rope, SelectRows, Span, Work
from phaseline.program.state import PagedKV, SlidingKV
from support.tiny import write_llama

HEADS, KV_HEADS, DIM = 6, 2, 16

spans = st.builds(Span, start=st.integers(0, 40), n=st.integers(1, 20), wanted=st.just(1))
windows = st.none() | st.integers(1, 80)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    path = tmp_path_factory.mktemp("cost") / "tiny.gguf"
    with open_gguf(write_llama(path, format="Q4_1", formats={"ffn_down": "Q8_0"}, context=1024)) as file:
        return model_program(file)[1]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Program:
    with open_gguf(smollm2_path) as file:
        return model_program(file)[1]


def value(width: int) -> Value:
    return Value("v", Rows.TOKENS, width)


@given(spans, windows)
def test_pairs_are_those_under_the_causal_mask(span: Span, window: int | None) -> None:
    positions = range(span.start, span.start + span.n)
    seen = [key <= query and query - key < (window or 100) for query in positions for key in range(span.start + span.n)]
    assert span.pairs(window) == sum(seen)


@given(st.lists(spans, max_size=4), st.sampled_from([1, 2, 4]), windows)
def test_attention_counted_by_hand(steps: list[Span], kv_bytes: int, window: int | None) -> None:
    q, kv = HEADS * DIM, KV_HEADS * DIM
    attend = Attend(value(q), value(kv), value(kv), value(q), 0, HEADS, KV_HEADS, DIM, 1.0, window=window)
    flops = moved = 0
    for span in steps:
        read: set[int] = set()
        for row in range(span.start, span.start + span.n):
            for key in range(max(0, row + 1 - (window or 100)), row + 1):
                flops += HEADS * (2 * DIM + 2 * DIM)  # q . k, then the sum of values
                read.add(key)
        stored = 2 * kv * kv_bytes  # one position's keys and values
        moved += len(read) * stored + span.n * stored  # what is read, what is written
    assert attend.cost(Work(steps, kv_bytes)) == Cost(flops, 0, moved)


def test_products_and_rows_counted_by_hand(program: Program) -> None:
    work = Work([Span(10, 5, 2), Span(0, 3, 0)])
    for op, cost in zip(program.ops, op_costs(program, work), strict=True):
        if isinstance(op, Linear):
            rows = 8 if op.x.rows is Rows.TOKENS else 2
            assert cost.flops == sum(2 * rows * w.shape[0] * w.shape[1] for w in op.matrices)
            assert cost.weight_bytes == sum(w.nbytes for w in op.weights())
        elif isinstance(op, Embed):
            assert cost == Cost(0, 8 * op.table.nbytes / op.table.shape[0], 0)
        elif isinstance(op, Rope):
            assert cost.flops == 3 * 8 * op.x.width
        elif isinstance(op, SelectRows):
            assert cost == Cost()
    assert step_cost(program, work) == sum(op_costs(program, work), Cost())


def test_a_step_that_wants_nothing_pays_for_no_head(program: Program) -> None:
    silent, spoken = step_cost(program, Work([Span(0, 4, 0)])), step_cost(program, prefill_work(4))
    head = program.ops[-1]
    assert isinstance(head, Linear)
    saved = spoken + Cost(-silent.flops, -silent.weight_bytes, -silent.state_bytes)
    assert saved == head.cost(prefill_work(1))
    assert step_cost(program, prefill_work(4, all_rows=True)).flops - silent.flops == 4 * saved.flops


@given(prompt=st.integers(1, 300), chunk=st.integers(1, 320))
def test_a_chunked_prompt_adds_up(program: Program, prompt: int, chunk: int) -> None:
    whole, cut = step_cost(program, prefill_work(prompt)), prompt_cost(program, prompt, chunk)
    assert cut.flops == pytest.approx(whole.flops)  # chunks only change the bytes
    pieces = chunk_schedule(prompt, chunk)
    once = sum(w.nbytes for op in program.ops if isinstance(op, Linear) for w in op.weights())
    head = sum(w.nbytes for w in program.ops[-1].weights())
    embedded = whole.weight_bytes - once
    assert cut.weight_bytes == pytest.approx(len(pieces) * (once - head) + head + embedded)
    stored = program.state[0].elements(1) * 2
    assert cut.state_bytes == stored * sum(end + (end - start) for start, end in pieces)


@given(streams=st.integers(1, 20), context=st.integers(0, 500))
def test_streams_share_the_weights_of_a_decode_step(program: Program, streams: int, context: int) -> None:
    one, many = step_cost(program, decode_work(context)), step_cost(program, decode_work(context, streams=streams))
    row = program.ops[0].cost(decode_work(0)).weight_bytes
    assert many.weight_bytes == pytest.approx(one.weight_bytes + (streams - 1) * row)
    assert (many.flops, many.state_bytes) == (pytest.approx(streams * one.flops), streams * one.state_bytes)


def test_state_counts_keys_and_values_of_every_layer() -> None:
    assert PagedKV(3, 2, 16).elements(5) == 3 * (2 + 2) * 16 * 5


@given(length=st.integers(0, 40), window=st.integers(1, 50))
def test_a_window_needs_what_its_next_row_reads(length: int, window: int) -> None:
    sliding = SlidingKV(3, 2, 16, window)
    needed = [p for p in range(length) if length - p < window]  # the row at `length` reads these and itself
    assert sliding.oldest(length) == (needed[0] if needed else length)
    assert sliding.elements(length) == PagedKV(3, 2, 16).elements(len(needed))


def test_smollm2_costs_what_its_sizes_say(smollm2: Program) -> None:
    """30 layers of width 576, 9 heads and 3 key heads of 64, feed-forward 1536."""
    layer = 576 * 576 * 2 + 2 * 192 * 576 + 3 * 576 * 1536
    products = [
        op.cost(prefill_work(100)).flops
        for op, at in zip(smollm2.ops, smollm2.layers, strict=True)
        if isinstance(op, Linear) and at >= 0
    ]
    assert sum(products) / 100 == 2 * 30 * layer
    assert 2 * 30 * layer / 1e6 == pytest.approx(212.3, abs=0.05)


def test_a_decode_step_of_smollm2_reads_the_file_once(smollm2: Program, smollm2_path: Path) -> None:
    step = step_cost(smollm2, decode_work(0))
    row = 576 / 32 * 20  # of the embedding, whose table is also the head
    assert step.weight_bytes == pytest.approx(weight_bytes(smollm2) + row, rel=1e-3)
    assert 0.95 * smollm2_path.stat().st_size < step.weight_bytes < smollm2_path.stat().st_size
    assert step.state_bytes == 2 * 30 * 2 * 3 * 64 * 2  # the new position: written, and read by itself
