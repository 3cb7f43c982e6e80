"""Block formats against the gguf package: the same bytes must give the same float32 bits."""

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.quant import FORMATS, format_of_id

NAMES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
NAMES += ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"]
NAMES += ["TQ1_0", "TQ2_0", "MXFP4"]
# Root mean square error of a quantised normal variable, with a margin of about a third.
LOSS = {"F16": 3e-4, "BF16": 3e-3, "Q8_0": 8e-3, "Q5_0": 0.06, "Q5_1": 0.06, "Q4_0": 0.12, "Q4_1": 0.11}
LOSS |= {"TQ1_0": 1.0, "TQ2_0": 1.0, "MXFP4": 0.2}


def reference(raw: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore", over="ignore"):
        decoded: NDArray[np.float32] = gguf.quants.dequantize(raw, GGMLQuantizationType[name])
    return decoded


def assert_same_bits(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert ours.dtype == np.float32 and ours.shape == theirs.shape
    nan = np.isnan(theirs)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))


def test_every_promised_format_is_there_with_ggml_numbers() -> None:
    assert sorted(FORMATS) == sorted(NAMES)
    for name, format in FORMATS.items():
        assert format.name == name and format.id == GGMLQuantizationType[name]
        assert (format.block, format.bytes) == GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        assert format_of_id(format.id) is format
    assert len({*FORMATS.values()}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_random_bytes_decode_to_the_same_bits(name: str) -> None:
    """Any bytes: scales may be subnormal, infinite or NaN; the matrix is larger than one batch of rows."""
    format = FORMATS[name]
    blocks = 1024 // format.block
    raw = np.random.default_rng(format.id).integers(0, 256, (300, blocks * format.bytes), dtype=np.uint8)
    assert_same_bits(format.decode_rows(raw), reference(raw, name))
    assert_same_bits(format.decode_rows(raw[1::2]), reference(raw[1::2].copy(), name))


@pytest.mark.parametrize("name", sorted(LOSS))
def test_quantised_values_come_back(name: str) -> None:
    values = np.random.default_rng(5).normal(size=(16, 256)).astype(np.float32)
    raw = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    decoded = FORMATS[name].decode_rows(raw)
    assert_same_bits(decoded, reference(raw, name).reshape(values.shape))
    assert 0 < np.sqrt(np.mean((decoded - values) ** 2)) < LOSS[name]


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_and_one_row(name: str) -> None:
    format = FORMATS[name]
    assert format.decode_rows(np.empty((0, format.bytes), np.uint8)).shape == (0, format.block)
    zeros = format.decode_rows(np.zeros((1, 2 * format.bytes), np.uint8))
    assert np.array_equal(zeros, np.zeros((1, 2 * format.block)))


def test_row_bytes_need_whole_blocks() -> None:
    assert FORMATS["Q4_1"].row_bytes(576) == 360
    assert FORMATS["Q6_K"].row_bytes(0) == 0
    with pytest.raises(FileFormatError, match=r"576 elements.*Q4_K blocks of 256"):
        FORMATS["Q4_K"].row_bytes(576)


@pytest.mark.parametrize(("id", "name"), [(40, "NVFP4"), (24, "I8"), (4, "unknown"), (999, "unknown")])
def test_other_types_are_refused_by_name(id: int, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{name} \(type {id}\).*supported: F32.*Q6_K.*MXFP4"):
        format_of_id(id)
