"""What the machine allows each phase."""

from pathlib import Path

import pytest

from phaseline import load
from phaseline.errors import UnsupportedError
from phaseline.serve.process.ceilings import phase_ceilings


def test_more_streams_may_decode_more_each_of_them_less(tiny: Path) -> None:
    with load(tiny, threads=1, max_running=12, chunk=64) as engine:
        found = phase_ceilings(engine, "bf16")
    streams, rates = zip(*found.decode, strict=True)
    assert streams == (1, 2, 4, 8, 12)
    assert list(rates) == pytest.approx(sorted(rates)) and rates[0] > 0
    each = [rate / n for n, rate in found.decode]
    assert each == pytest.approx(sorted(each, reverse=True))
    assert found.prefill > rates[0]


def test_the_reference_has_none(tiny: Path) -> None:
    with (
        load(tiny, numerics="reference", memory=600 << 20) as engine,
        pytest.raises(UnsupportedError, match="ceilings"),
    ):
        phase_ceilings(engine, "bf16")
