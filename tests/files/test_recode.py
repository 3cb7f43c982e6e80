"""A model held in another format: the gguf package's own encoders agree, and nothing but matrices changes."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from phaseline.errors import UnsupportedError
from phaseline.files.gguf import open_gguf
from phaseline.files.recode import WEIGHT_TYPES, RecodedFile
from support.memory_file import MemoryFile
from support.tiny import write_llama

MATRICES = arrays(np.float32, (3, 64), elements=st.floats(-1e4, 1e4, width=32))


@given(MATRICES, st.sampled_from(WEIGHT_TYPES))
def test_values_are_encoded_as_others_encode_them(values: np.ndarray, format: str) -> None:
    file = MemoryFile()
    file.add("w", values)
    recoded = RecodedFile(file, format)
    with np.errstate(all="ignore"):  # the package inverts scales too small for it
        theirs = gguf.quants.quantize(values, GGMLQuantizationType[format.upper()])
    decoded = gguf.quants.dequantize(theirs, GGMLQuantizationType[format.upper()])
    # One step of rounding: of a value in bf16, of a block's largest in q8_0 (and of its half-precision scale).
    step = np.abs(values) / 128 if format == "bf16" else np.repeat(np.abs(values).reshape(-1, 32).max(1), 32) / 100
    tolerance = np.broadcast_to(step.reshape(values.shape), values.shape) + 1e-4
    assert np.all(np.abs(recoded.float32("w") - values) <= tolerance)
    assert np.all(np.abs(recoded.float32("w") - decoded) <= tolerance)
    assert recoded.raw("w").shape == (3, recoded.tensors["w"].format.row_bytes(64))
    assert recoded.tensors["w"].nbytes == recoded.raw("w").nbytes


def test_ordinary_weights_are_encoded_to_the_bit() -> None:
    values = np.random.default_rng(0).normal(0, 0.05, (40, 96)).astype(np.float32)
    file = MemoryFile()
    file.add("w", values)
    for format in WEIGHT_TYPES:
        theirs = gguf.quants.quantize(values, GGMLQuantizationType[format.upper()]).view(np.uint8).reshape(40, -1)
        ours = RecodedFile(file, format).raw("w")
        assert np.mean(ours != theirs) < 0.01, "but for ties and the last bit of a scale"


def test_only_matrices_that_divide_into_blocks_change(tmp_path: Path) -> None:
    with open_gguf(write_llama(tmp_path / "tiny.gguf", format="Q4_1", formats={"output.weight": "Q8_0"})) as file:
        recoded = RecodedFile(file, "q8_0")
        assert recoded.metadata is file.metadata and recoded.path == file.path
        for name, info in file.tensors.items():
            new = recoded.tensors[name]
            assert new.shape == info.shape
            assert new.format.name == ("F32" if len(info.shape) == 1 else "Q8_0")
            assert recoded.raw(name).nbytes == new.nbytes
            recoded.release(name)
        kept = file.tensors["output.weight"]
        assert recoded.tensors["output.weight"] is kept and np.array_equal(recoded.raw(kept.name), file.raw(kept.name))
    odd = MemoryFile()
    odd.add("w", np.ones((2, 33)))
    assert RecodedFile(odd, "q8_0").tensors["w"].format.name == "F32"
    assert RecodedFile(odd, "bf16").tensors["w"].format.name == "BF16"


def test_zero_weights_stay_zero() -> None:
    file = MemoryFile()
    file.add("w", np.zeros((2, 32)))
    assert not RecodedFile(file, "q8_0").float32("w").any()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'q4_1' \(supported: bf16, q8_0\)"):
        RecodedFile(MemoryFile(), "q4_1")
