"""The llama family: settings and tensors it reads, those it refuses by name, and the program it builds."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.families import llama, model_program
from phaseline.families.spec import ModelSpec
from phaseline.files.base import TensorInfo
from phaseline.files.gguf import GGUFFile, open_gguf
from phaseline.files.quant import FORMATS
from phaseline.program.ops import Attend, Embed, Linear, Rope, RopeSpec, SelectRows
from phaseline.program.state import PagedKV
from support.memory_file import MemoryFile
from support.tiny import write_llama

SIZES: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ff": 96, "vocab": 300, "context": 128}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    with open_gguf(write_llama(tmp_path_factory.mktemp("llama") / "tiny.gguf", **SIZES)) as file:
        yield file


def spec(file: GGUFFile, **changed: Any) -> ModelSpec:
    """The spec with settings replaced (`__` for a dot), or left out if None."""
    meta = dict(file.metadata) | {f"llama.{name.replace('__', '.')}": value for name, value in changed.items()}
    return llama.spec_from({key: value for key, value in meta.items() if value is not None}, file.tensors)


def test_every_size_is_read(file: GGUFFile) -> None:
    assert spec(file) == ModelSpec(
        arch="llama",
        layers=2,
        width=64,
        ff=96,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=300,
        context=128,
        norm_eps=pytest.approx(1e-5),
        rope=RopeSpec(16, 10000.0),
    )


def test_what_may_be_left_out_has_its_usual_value(file: GGUFFile) -> None:
    optional = ("attention__key_length", "attention__value_length", "vocab_size", "rope__dimension_count")
    assert spec(file, **dict.fromkeys(optional), rope__freq_base=None) == spec(file)
    assert spec(file, attention__head_count_kv=None).kv_heads == 4


@pytest.mark.parametrize(
    "name",
    [
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention__head_count",
        "context_length",
        "attention__layer_norm_rms_epsilon",
    ],
)
def test_a_setting_that_is_missing_is_named(file: GGUFFile, name: str) -> None:
    with pytest.raises(FileFormatError, match=rf"llama\.{name.replace('__', '.')} is missing"):
        spec(file, **{name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_count", 0),
        ("block_count", -2),
        ("block_count", 1 << 40),
        ("block_count", "2"),
        ("block_count", True),
        ("block_count", 2.0),
        ("block_count", [2, 2]),
        ("attention__head_count", [4, 4]),
        ("attention__layer_norm_rms_epsilon", math.nan),
        ("attention__layer_norm_rms_epsilon", 0.0),
        ("attention__layer_norm_rms_epsilon", -1.0),
        ("attention__layer_norm_rms_epsilon", "small"),
        ("rope__freq_base", math.inf),
        ("rope__freq_base", False),
    ],
)
def test_a_setting_out_of_range_is_named(file: GGUFFile, name: str, value: Any) -> None:
    with pytest.raises(FileFormatError, match=rf"llama\.{name.replace('__', '.')} (is|must be)"):
        spec(file, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expert_used_count", 2),
        ("rope__scaling__type", "longrope"),
        ("rope__scaling__yarn_ext_factor", 0.5),
        ("attention__value_length", 32),
        ("attention__sliding_window", 4096),
        ("logit_scale", 0.5),
        ("anything_new", 0),
    ],
)
def test_a_setting_that_would_change_the_model_is_refused_by_name(file: GGUFFile, name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=rf"llama\.{name.replace('__', '.')}.*supported"):
        spec(file, **{name: value})


def test_settings_that_change_nothing_are_accepted(file: GGUFFile) -> None:
    assert spec(file, expert_count=0, rope__scaling__type="none", rope__scaling__factor=1.0) == spec(file)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"attention__head_count_kv": 3}, FileFormatError, "4 query heads do not split over 3"),
        ({"rope__dimension_count": 15}, FileFormatError, "dimension_count 15 must be even"),
        ({"rope__dimension_count": 18}, FileFormatError, "within 16"),
        (
            {"attention__key_length": 15, "attention__value_length": 15, "rope__dimension_count": 14},
            UnsupportedError,
            "head size 15 is odd",
        ),
    ],
)
def test_sizes_that_contradict_each_other(
    file: GGUFFile, changed: dict[str, Any], error: type[PhaselineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        spec(file, **changed)


def test_the_program_is_the_layers_in_order(file: GGUFFile) -> None:
    program = model_program(file)[1]
    layer = [Linear, Rope, Rope, Attend, Linear, Linear, Linear]
    assert [type(op) for op in program.ops] == [Embed, *layer, *layer, SelectRows, Linear]
    assert program.layers == [-1, *[0] * 7, *[1] * 7, -1, -1]
    assert (program.state, program.vocab, program.context) == ((PagedKV(2, 2, 16),), 300, 128)
    assert program.ops[-1].outputs() == (program.logits,) and program.logits.width == 300
    assert [op.layer for op in program.ops if isinstance(op, Attend)] == [0, 1]
    assert program.weights().keys() == file.tensors.keys()


def test_a_tied_head_reads_the_embedding(tmp_path: Path) -> None:
    with open_gguf(write_llama(tmp_path / "tied.gguf", tied=True)) as file:
        program = model_program(file)[1]
    assert isinstance(program.ops[-1], Linear) and isinstance(program.ops[0], Embed)
    assert program.ops[-1].matrices == (program.ops[0].table,)


def test_a_tensor_without_a_part_is_refused_by_name(file: GGUFFile) -> None:
    extra = TensorInfo("blk.0.attn_q.bias", (64,), FORMATS["F32"], 256)
    with pytest.raises(UnsupportedError, match=r"'blk\.0\.attn_q\.bias' has no part"):
        llama.build(spec(file), {**file.tensors, extra.name: extra})


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight"])
def test_a_tensor_that_is_missing_or_misshapen_is_named(file: GGUFFile, name: str) -> None:
    without = {key: info for key, info in file.tensors.items() if key != name}
    with pytest.raises(FileFormatError, match=f"'{name}' is missing"):
        llama.build(spec(file), without)
    info = file.tensors[name]
    odd = TensorInfo(name, (*info.shape[:-1], info.shape[-1] + 32), info.format, info.nbytes)
    with pytest.raises(FileFormatError, match=f"'{name}' has shape"):
        llama.build(spec(file), {**file.tensors, name: odd})


def test_layers_beyond_the_stated_ones_are_not_ignored(file: GGUFFile) -> None:
    with pytest.raises(UnsupportedError, match=r"'blk\.1\..* has no part"):
        llama.build(spec(file, block_count=1), file.tensors)


def test_a_file_must_name_its_architecture() -> None:
    file = MemoryFile()
    with pytest.raises(FileFormatError, match=r"general\.architecture is missing"):
        model_program(file)
    file.metadata = {"general.architecture": "perceiver"}
    with pytest.raises(UnsupportedError, match=r"'perceiver' is not supported .*llama"):
        model_program(file)


def test_smollm2_is_what_it_is(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as file:
        sizes, program = model_program(file)
    assert (sizes.layers, sizes.width, sizes.ff, sizes.heads, sizes.kv_heads) == (30, 576, 1536, 9, 3)
    assert (sizes.head_dim, sizes.vocab, sizes.context) == (64, 49152, 8192)
    assert sizes.rope == RopeSpec(64, 100000.0)
    assert len(program.ops) == 30 * 7 + 3
