"""Models that the calculator knows by name, against what was published of them."""

import pytest

from phaseline.errors import RequestError
from phaseline.lab.estimate import Case, estimate
from phaseline.lab.hardware import HARDWARE
from phaseline.lab.known_shapes import KNOWN, kimi_k3


def test_kimi_k3_is_as_large_as_its_file() -> None:
    shape = kimi_k3()
    assert 531e9 <= shape.formats["IQ1_S"].bytes < 532e9
    assert shape.formats["IQ1_S"].params == 92 * 896 * 3 * 3584 * 3072
    assert shape.formats["Q8_0"].bytes == pytest.approx(1.25e9, rel=2e-3)
    assert shape.total.bytes == pytest.approx(553e9)
    assert sum(w.bytes for w in shape.formats.values()) == pytest.approx(shape.total.bytes)
    assert sum(w.params for w in shape.formats.values()) == pytest.approx(shape.total.params)
    assert shape.total.params == pytest.approx(2.78e12, rel=2e-3)
    # Keys and values: 24 layers of 512 + 64 in two bytes; the delta rule's state: 69 x 96 heads of 128 x 128 floats.
    assert shape.kv_bytes == 24 * 576 * 2 and shape.stream_bytes == 69 * 96 * 128 * 128 * 4


def test_distinct_experts_of_a_chunk() -> None:
    case = Case(context=32768, batches=[1], chunk=32, compute="bf16")
    record = estimate(kimi_k3(), HARDWARE["h200"].times(8), case)
    rows = {row["rows"]: row for row in record["experts"]["rows"]}
    for count in (1, 32, 64, 512):
        expected = 896 * (1 - (1 - 16 / 896) ** count)
        assert rows[count]["distinct"] == pytest.approx(expected)
    assert rows[1]["distinct"] == pytest.approx(16) and rows[32]["most"] == 512
    # The published speeds are below their bounds.
    prefill, decode = record["steps"]
    assert prefill["tok_s"] > 143.88 and decode["tok_s"] > 60.2
    assert decode["product_limit"] == prefill["product_limit"] == "bandwidth"


def test_state_that_does_not_grow_is_counted() -> None:
    shape, hardware = kimi_k3(), HARDWARE["h200"].times(8)
    short, long = (estimate(shape, hardware, Case(n, [1, 4], 1, "bf16")) for n in (1, 1001))
    assert short["kv"]["bytes_per_stream"] == shape.stream_bytes + shape.kv_bytes
    assert long["kv"]["bytes_per_stream"] == shape.stream_bytes + 1001 * shape.kv_bytes
    one, four = short["steps"][1:]
    assert four["attention_s"] == pytest.approx(4 * one["attention_s"])
    assert one["attention_s"] >= 2 * shape.stream_bytes / hardware.bandwidth


def test_other_weights() -> None:
    plain = KNOWN["kimi-k3"](weight_bits=16)
    assert plain.total.bytes == 2 * plain.total.params and not plain.formats
    with pytest.raises(RequestError, match="weight_bits"):
        kimi_k3(weight_bits=0)
