"""The paper calculator's functions, against worked cases that are published or can be counted."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.errors import RequestError, UnsupportedError
from phaseline.lab import (
    amortisable_share,
    attention_intensity,
    critical_batch,
    decode_floor,
    distinct_experts,
    kv_bytes,
    largest_batch,
    mlp_intensity,
    product_limit,
    step_time,
)
from phaseline.lab.calculator import step_bound
from phaseline.lab.hardware import HARDWARE, hardware_named

MS = 1e-3
# 30 B dense parameters in int8 on 16 chips of 197 TFLOP/s (bf16) and 0.81 TB/s; 8192 positions of 100 kB a stream
CHIPS = {"flops": 16 * 197e12, "bandwidth": 16 * 0.81e12}
STREAM = 8192 * 100e3
amounts = st.floats(1e-3, 1e15)


def test_the_quiz_at_batch_4_is_memory_bound() -> None:
    seconds = step_time(4, 30e9, param_bytes=1, attention_bytes=4 * STREAM, **CHIPS)
    assert seconds == pytest.approx(2.5 * MS, rel=0.03)
    assert seconds == pytest.approx((30e9 + 4 * STREAM) / CHIPS["bandwidth"])
    assert seconds > 20 * (2 * 4 * 30e9 / CHIPS["flops"])


def test_the_quiz_at_batch_256_is_compute_bound_in_its_products_alone() -> None:
    products = {"product_flops": 2 * 256 * 30e9, "product_bytes": 30e9}
    bound = step_bound(**products, attention_bytes=256 * STREAM, attention_flops=256 * STREAM, **CHIPS)
    assert bound.seconds == pytest.approx(21 * MS, rel=0.01)
    assert bound.seconds == step_time(256, 30e9, param_bytes=1, attention_bytes=256 * STREAM, **CHIPS)
    assert (bound.product_limit, bound.attention_limit) == ("compute", "bandwidth")
    assert bound.products == pytest.approx(2 * 256 * 30e9 / CHIPS["flops"])
    assert bound.attention == pytest.approx(256 * STREAM / CHIPS["bandwidth"])


def test_critical_batches_of_known_chips() -> None:
    assert critical_batch(197e12, 0.81e12) == pytest.approx(240, rel=0.02)
    tpu, h100 = HARDWARE["tpu-v5e"], HARDWARE["h100"]
    assert critical_batch(tpu.peak("bf16"), tpu.bandwidth) == pytest.approx(240, rel=0.01)
    assert 280 <= critical_batch(h100.peak("bf16"), h100.bandwidth) <= 300
    assert critical_batch(h100.peak("fp8"), h100.bandwidth, param_bytes=1) == pytest.approx(
        critical_batch(h100.peak("bf16"), h100.bandwidth), rel=0.01
    )


def test_chips_add_up() -> None:
    one = HARDWARE["a100"]
    many = one.times(8)
    assert (many.count, many.memory, many.bandwidth) == (8, 8 * one.memory, 8 * one.bandwidth)
    assert many.peak("bf16") == 8 * one.peak("bf16") and one.count == 1
    with pytest.raises(UnsupportedError, match="a100 has no peak for fp8; it has bf16, int8"):
        one.peak("fp8")
    with pytest.raises(UnsupportedError, match=r"'abacus'.*h100, h200, a100, tpu-v5e, this"):
        hardware_named("abacus", 1e9)
    with pytest.raises(RequestError, match="count = 0"):
        one.times(0)


def test_few_rows_are_memory_bound_and_many_are_compute_bound() -> None:
    assert (product_limit(8, 240), product_limit(1024, 240)) == ("bandwidth", "compute")
    assert (mlp_intensity(8, 1), mlp_intensity(1, 1024)) == (8, 1024)
    assert mlp_intensity(8, 4, param_bytes=1) == 2 * mlp_intensity(8, 4) == 64


@given(amounts, amounts, st.floats(0.1, 4), st.floats(1, 1e6))
def test_the_critical_batch_is_where_reading_takes_as_long(f: float, w: float, size: float, n: float) -> None:
    critical = critical_batch(f, w, size)
    assert mlp_intensity(critical, 1, size) == pytest.approx(f / w)
    for rows in (0.99 * critical, 1.01 * critical):
        bound = step_bound(flops=f, bandwidth=w, product_flops=2 * rows * n, product_bytes=n * size)
        assert bound.product_limit == product_limit(rows, critical)


def test_attention_intensity_at_context_2048() -> None:
    assert attention_intensity(2048, 2048) == 1024
    assert attention_intensity(2048, 1) == pytest.approx(1, rel=1e-3)
    assert attention_intensity(2048, 1) < 1
    assert attention_intensity(2048, 1, group=8) == 8 * attention_intensity(2048, 1)


@pytest.mark.parametrize("context", [1, 100, 10**6])
def test_attention_intensity_in_decode_never_reaches_the_group(context: int) -> None:
    assert attention_intensity(context, 1, group=4) < 4


def test_many_queries_per_key_make_attention_compute_bound() -> None:
    part = {"flops": 100.0, "bandwidth": 1.0, "product_flops": 1.0, "product_bytes": 1.0, "attention_bytes": 10.0}
    few, many = (step_bound(**part, attention_flops=group * 10.0) for group in (8, 800))
    assert (few.attention_limit, few.attention) == ("bandwidth", 10.0)
    assert (many.attention_limit, many.attention, many.seconds) == ("compute", 80.0, 81.0)
    other = step_bound(**part, attention_flops=8000.0, attention_rate=50.0)  # attention computes in a type of its own
    assert (other.attention, other.products) == (160.0, 1.0)


def test_a_step_never_takes_less_than_its_launch() -> None:
    arguments = {"param_bytes": 1.0, "attention_bytes": STREAM, **CHIPS}
    free = step_time(1, 30e9, **arguments)
    assert step_time(1, 30e9, launch=free / 2, **arguments) == free
    assert step_time(1, 30e9, launch=2 * free, **arguments) == 2 * free


def test_distinct_experts_of_32_rows_with_16_of_896() -> None:
    # by counting: a row misses a given expert with probability 880 / 896
    assert distinct_experts(896, 16, 32) == pytest.approx(896 * (1 - (880 / 896) ** 32))
    assert distinct_experts(896, 16, 32) == pytest.approx(392.6, abs=0.1)
    assert distinct_experts(896, 16, 32) < 16 * 32
    assert distinct_experts(896, 16, 1) == 16
    assert distinct_experts(8, 8, 5) == 8
    assert distinct_experts(8, 2, 0) == 0


@given(st.integers(1, 2000), st.data(), st.integers(1, 10**6))
def test_distinct_experts_are_bounded_and_grow(experts: int, data: st.DataObject, rows: int) -> None:
    active = data.draw(st.integers(1, experts))
    found = distinct_experts(experts, active, rows)
    assert active * 0.999 <= found <= min(active * rows, experts)
    assert distinct_experts(experts, active, rows + 1) >= found


def test_what_chunking_saves() -> None:
    assert amortisable_share(3.0, 1.0, 896, 16, 1) == pytest.approx(0)
    # two rows, two experts, one each: they meet half of the time, so 1 + 1.5 of twice 1 + 1 bytes are read
    assert amortisable_share(1.0, 1.0, 2, 1, 2) == pytest.approx(1 - 2.5 / 4)
    assert amortisable_share(0.0, 1.0, 10**9, 1, 64) == pytest.approx(0, abs=1e-6)  # nothing shared, no two rows meet
    shares = [amortisable_share(3.0, 1.0, 896, 16, rows) for rows in (1, 8, 64, 512, 4096)]
    assert shares == sorted(shares) and shares[-1] < 1


def test_a_7b_model_in_16_bits_on_303_gb_per_s() -> None:
    weights = 7e9 * 2
    assert weights == 14e9
    assert decode_floor(weights, 303e9) == pytest.approx(46 * MS, rel=0.01)


def test_keys_and_values_and_how_many_streams_of_them_fit() -> None:
    # Llama-2-7B: 32 layers of 32 heads of 128, two bytes an element: half a mebibyte a position
    assert kv_bytes(32, 32, 128) == 2**19
    assert kv_bytes(32, 32, 128, tokens=4096, element_bytes=1) == 2**30
    assert largest_batch(memory=100.0, weight_bytes=40.0, stream_bytes=20.0) == 3
    assert largest_batch(memory=99.9, weight_bytes=40.0, stream_bytes=20.0) == 2
    assert largest_batch(memory=39.0, weight_bytes=40.0, stream_bytes=20.0) == 0


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_size_is_refused_by_name(wrong: float) -> None:
    calls: dict[str, Callable[[], object]] = {
        "batch": lambda: mlp_intensity(wrong, 1),
        "group": lambda: attention_intensity(1, 1, wrong),
        "bandwidth": lambda: critical_batch(1, wrong),
        "rows": lambda: product_limit(wrong, 240),
        "params": lambda: step_time(1, wrong, flops=1, bandwidth=1),
        "flops": lambda: step_time(1, 1, flops=wrong, bandwidth=1),
        "element_bytes": lambda: kv_bytes(1, 1, 1, element_bytes=wrong),
        "stream_bytes": lambda: largest_batch(1, 1, wrong),
        "weight_bytes": lambda: decode_floor(wrong, 1),
        "expert_bytes": lambda: amortisable_share(1, wrong, 2, 1, 1),
    }
    for name, call in calls.items():
        with pytest.raises(RequestError, match=f"{name} = "):
            call()


def test_more_active_experts_than_there_are_is_refused() -> None:
    with pytest.raises(RequestError, match="3 active experts: there are only 2"):
        distinct_experts(2, 3, 1)
    with pytest.raises(RequestError, match="launch = -1"):
        step_time(1, 1, flops=1, bandwidth=1, launch=-1.0)
