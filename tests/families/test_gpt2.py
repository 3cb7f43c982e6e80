"""GPT-2: settings, schedules against transformers and llama.cpp, and the end of its table of positions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.engine.load import load
from phaseline.engine.types import SamplingParams
from phaseline.errors import CapacityError, FileFormatError, UnsupportedError
from phaseline.families import gpt2, model_program
from phaseline.files.gguf import open_gguf
from phaseline.program.ops import Attend, Embed, LayerNorm, Linear
from phaseline.program.step import Segment, Step
from support.family_checks import assert_every_schedule, assert_same_tokens_as_llamacpp, assert_seen
from support.models import Model, open_model
from support.tiny import write_gpt2
from support.transformers_nets import Floats, gpt2_net, net_logits

TOKENS = 150  # of the 160 positions: more than two chunks of 64, and four pages


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("gpt2") / "tiny.gguf", seed=5)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with open_gguf(path) as file:
        yield open_model(file)


def test_every_schedule_gives_what_transformers_gives(model: Model) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    net = gpt2_net(model)
    assert_every_schedule(model, lambda ids: net_logits(net, ids), TOKENS)


@pytest.mark.parametrize("dropped", ["attn_qkv.bias", "ffn_up.bias", "attn_norm.bias", "position_embd.weight"])
def test_the_comparison_sees_what_is_dropped(model: Model, dropped: str) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")

    def change(name: str, values: Floats) -> Floats:
        return np.zeros_like(values) if name.endswith(dropped) else values

    net = gpt2_net(model, change=change)
    assert_seen(model, lambda ids: net_logits(net, ids), 40)


def test_the_same_tokens_as_llamacpp(path: Path) -> None:
    """Its gelu comes from a table of half precision, good to some 1e-3 of each: no choice here is that close."""
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    assert_same_tokens_as_llamacpp(path, prompts=(1, 9, 70), tokens=40, lead=0.01)


def test_one_past_the_table_is_refused(path: Path, model: Model) -> None:
    """By the request where it is made, and by the executors, which have no row to add."""
    assert model.program.context == 160
    engine = load(path)
    with pytest.raises(CapacityError, match="160"):
        engine.generate(list(range(2, 163)), SamplingParams(max_tokens=1))
    engine.close()
    for executor in (model.native(), model.reference()):
        with pytest.raises(CapacityError, match="position 160 is past the model's context of 160"):
            executor.forward(Step([Segment(0, 155, [2] * 6)]), np.arange(6, dtype=np.int32)[None, :])


def test_a_table_of_another_length_is_refused(path: Path, model: Model) -> None:
    with open_gguf(path) as file:
        spec = gpt2.spec_from({**file.metadata, "gpt2.context_length": 161}, file.tensors)
        with pytest.raises(FileFormatError, match=r"'position_embd\.weight' has shape \(160, 64\)"):
            gpt2.build(spec, file.tensors)


def test_the_program_is_small(model: Model) -> None:
    """Queries, keys and values come from one product, and nothing but the products normalises."""
    layer = [Linear, Attend, Linear, Linear, Linear]
    ops = model.program.ops
    assert [type(op) for op in ops[1 : 1 + 5 * 3]] == layer * 3
    assert isinstance(ops[0], Embed) and ops[0].positions is not None
    assert isinstance(ops[1], Linear) and len(ops[1].matrices) == 1 and len(ops[1].outs) == 3
    assert isinstance(ops[1].norm, LayerNorm)


@pytest.mark.parametrize(
    ("key", "value"), [("attention.scale", 0.5), ("attention.value_length", 32), ("rope.freq_base", 1e4), ("new", 1)]
)
def test_a_setting_that_would_change_the_model_is_refused_by_name(path: Path, key: str, value: Any) -> None:
    with open_gguf(path) as file, pytest.raises(UnsupportedError, match=rf"gpt2\.{key}"):
        gpt2.spec_from({**file.metadata, f"gpt2.{key}": value}, file.tensors)


def test_a_file_without_a_bias_is_refused(path: Path) -> None:
    with open_gguf(path) as file:
        tensors = {name: info for name, info in file.tensors.items() if name != "blk.1.ffn_down.bias"}
        with pytest.raises(FileFormatError, match=r"'blk\.1\.ffn_down\.bias' is missing"):
            gpt2.build(model_program(file)[0], tensors)
