"""Packed weights give back the very floats that the formats' decode defines."""

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.files.quant import FORMATS, Format

# Where each format keeps its halves within a block.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
HALVES |= {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64]}
HALVES |= {name: [0] for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")}
COLS = {1: (1, 7, 33, 256), 32: (32, 96, 512), 256: (256, 768)}


def unpacked(format: Format, raw: NDArray[np.uint8], cols: int, threads: int = 1) -> NDArray[np.float32]:
    """All rows read back from the panels."""
    matrix = _native.pack(format.name, raw, cols, _native.Team(threads), _native.Store(), format.codebook)
    assert matrix.shape == (len(raw), cols)
    assert matrix.nbytes == _native.packed_bytes(format.name, len(raw), cols)
    out = np.full((len(raw), cols), np.nan, np.float32)
    for i, row in enumerate(out):
        matrix.row(i, row)
    return out


def assert_same_floats(ours: NDArray[np.float32], reference: NDArray[np.float32]) -> None:
    """Equal bit for bit, signed zeros too; any NaN equals any other."""
    nan = np.isnan(reference)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), reference[~nan].view(np.uint32))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda f: f.name)
def test_any_bytes_come_back_as_the_same_floats(format: Format, rows: int) -> None:
    """Random bytes hold every code, and scales that are subnormal, infinite or not a number."""
    rng = np.random.default_rng(rows)
    for cols in COLS[format.block]:
        raw = rng.integers(0, 256, (rows, format.row_bytes(cols)), dtype=np.uint8)
        assert_same_floats(unpacked(format, raw, cols, threads=1 + rows % 3), format.decode_rows(raw))


@pytest.mark.parametrize("name", HALVES)
def test_subnormal_halves(name: str) -> None:
    """Scales below 2^-14 keep the few bits they have."""
    format, rng = FORMATS[name], np.random.default_rng(7)
    raw = rng.integers(0, 256, (17, 2, format.bytes), dtype=np.uint8)
    for at in HALVES[name]:
        raw[..., at : at + 2] = rng.integers(1, 1024, (17, 2, 1), dtype=np.uint16).view(np.uint8)
    raw = raw.reshape(17, -1)
    reference = format.decode_rows(raw)
    assert np.count_nonzero(reference) > reference.size / 2 and np.isfinite(reference).all()
    assert_same_floats(unpacked(format, raw, 2 * format.block), reference)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32"])
def test_every_special_value_of_the_plain_types(name: str) -> None:
    halves = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0x7F81], np.uint16)
    raw = (halves if name != "F32" else halves.astype(np.uint32) << 16).view(np.uint8)[None, :]
    assert_same_floats(unpacked(FORMATS[name], raw, len(halves)), FORMATS[name].decode_rows(raw))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_one_wrong_byte_is_seen(name: str) -> None:
    """The comparison itself: any byte of a block changes some value."""
    format, rng = FORMATS[name], np.random.default_rng(3)
    raw = rng.integers(0, 64, (16, format.bytes), dtype=np.uint8)  # small: no infinities, no NaN
    expected = format.decode_rows(raw)
    for at in range(format.bytes):
        wrong = raw.copy()
        wrong[5, at] ^= 0x15
        with pytest.raises(AssertionError):
            assert_same_floats(unpacked(format, wrong, format.block), expected)


@pytest.mark.parametrize(
    ("format", "width", "cols"),
    [("Q4_1", 20, 33), ("Q4_1", 40, 32), ("Q4_K", 144, 32), ("NVFP4", 36, 64), ("F32", 0, 0)],
)
def test_bytes_that_do_not_fit_are_refused(format: str, width: int, cols: int) -> None:
    with pytest.raises(ValueError, match=r"row's bytes|no kernel reads"):
        _native.pack(format, np.zeros((2, width), np.uint8), cols, _native.Team(1), _native.Store())


def test_a_codebook_that_is_not_the_formats_is_refused() -> None:
    for format, book in (("IQ1_S", None), ("IQ1_S", FORMATS["IQ2_S"].codebook), ("Q4_K", FORMATS["IQ1_S"].codebook)):
        raw = np.zeros((2, FORMATS[format].bytes), np.uint8)
        with pytest.raises(ValueError, match="codebook"):
            _native.pack(format, raw, 256, _native.Team(1), _native.Store(), book)


def test_rows_outside_are_refused() -> None:
    matrix = _native.pack("F32", np.zeros((3, 8), np.uint8), 2, _native.Team(1), _native.Store())
    for row, width in ((-1, 2), (3, 2), (0, 3)):
        with pytest.raises(IndexError):
            matrix.row(row, np.zeros(width, np.float32))
