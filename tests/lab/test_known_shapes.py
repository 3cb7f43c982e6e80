"""Models that the calculator knows by name, against what was published of them."""

import math
from dataclasses import dataclass

import pytest

from phaseline.errors import RequestError
from phaseline.families import blocks
from phaseline.families import kimi_k3 as family
from phaseline.families.spec import DeltaSpec, LatentSpec, MoeSpec
from phaseline.files.base import TensorInfo
from phaseline.files.quant import FORMATS
from phaseline.lab.estimate import Case, estimate
from phaseline.lab.hardware import HARDWARE
from phaseline.lab.known_shapes import KNOWN, kimi_k3
from phaseline.lab.shapes import shape_from_program
from phaseline.program.cost import decode_work, step_cost
from phaseline.program.ir import Builder
from phaseline.program.ops import ResidualMix, Router


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


@dataclass
class Asked(Builder):
    """Has every tensor that is asked for, of the shape that is asked for: routed experts in IQ1_S, others in Q8_0."""

    def weight(self, name: str, *shape: int) -> TensorInfo:
        plain = len(shape) == 1 or ("ssm_" in name and shape[-1] < 32)
        format = FORMATS["F32" if plain else "IQ1_S" if "_exps" in name else "Q8_0"]
        return TensorInfo(name, shape, format, math.prod(shape[:-1]) * format.row_bytes(shape[-1]))

    def has(self, name: str) -> bool:
        return not name.endswith(("attn_kv_b.weight", "ssm_g_a.weight"))


def test_kimi_k3_is_as_large_as_the_program_that_its_family_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its published sizes, without weights: 69 layers carry a state, 24 keep latents, eight rows are banked."""
    monkeypatch.setattr(blocks, "Builder", Asked)
    spec = family.KimiK3Spec(
        arch="kimi-k3",
        layers=93,
        width=7168,
        ff=33_792,
        heads=96,
        kv_heads=1,
        head_dim=192,
        vocab=163_840,
        context=1 << 20,
        norm_eps=1e-6,
        moe=MoeSpec(Router(896, 16, "sigmoid", renormalise=True), 3072, 6144, 1, latent=3584),
        latent=LatentSpec(1536, 512, 128, 64, 128, 192**-0.5),
        delta=DeltaSpec(96, 128, 4, tuple(n % 4 != 3 and n != 92 for n in range(93)), -5.0),
        bank_every=12,
    )
    program = family.build(spec, {})
    found, known = shape_from_program(program, "kimi-k3"), kimi_k3()
    for name in ("every_row", "wanted", "held"):
        assert getattr(found, name).params == getattr(known, name).params
    assert found.expert.params == pytest.approx(known.expert.params)
    assert found.expert.bytes * 896 == pytest.approx(known.formats["IQ1_S"].bytes)
    assert found.wanted.bytes == pytest.approx(known.wanted.bytes, rel=1e-4)  # beside it, norm and scores
    for name in ("experts", "active", "kv_bytes", "pair_flops", "prefill_pair_flops", "group", "prefill_group"):
        assert getattr(found, name) == getattr(known, name)
    window = 69 * 3 * 3 * 96 * 128 * 4  # rows that convolutions look back to, which the known shape leaves out
    assert found.stream_bytes == known.stream_bytes + window
    assert max(len(op.bank) for op in program.ops if isinstance(op, ResidualMix)) == 8
    assert step_cost(program, decode_work(0)).routed_bytes == pytest.approx(16 * known.expert.bytes)
