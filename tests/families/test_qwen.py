"""Qwen2 and Qwen3: biases on queries, keys and values; norms of their heads; rotation of halves."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.families import qwen2, qwen3
from phaseline.files.gguf import open_gguf
from phaseline.program.ops import Linear, Normalise, RMSNorm, Rope, RopeSpec
from support.family_checks import assert_every_schedule, assert_same_tokens_as_llamacpp, assert_seen
from support.models import Model, open_model
from support.tiny import write_decoder
from support.transformers_nets import Floats, net_logits, qwen2_net, qwen3_net

FAMILIES: dict[str, tuple[ModuleType, Any, dict[str, Any]]] = {
    "qwen2": (qwen2, qwen2_net, {"qkv_biases": True, "layers": 3, "rope_theta": 1e6}),
    "qwen3": (qwen3, qwen3_net, {"head_norms": True, "layers": 3, "head_dim": 32, "tied": True, "rope_theta": 1e6}),
}
TOKENS = 150  # more than two chunks of 64, and four pages


@pytest.fixture(scope="module", params=FAMILIES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp(arch) / "tiny.gguf", arch, seed=1, **FAMILIES[arch][2])


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with open_gguf(path) as file:
        yield open_model(file)


def test_every_schedule_gives_what_transformers_gives(arch: str, model: Model) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    net = FAMILIES[arch][1](model)
    assert_every_schedule(model, lambda ids: net_logits(net, ids), TOKENS)


DROPPED = [("qwen2", f"attn_{part}.bias") for part in "qkv"] + [("qwen3", f"attn_{part}_norm.weight") for part in "qk"]


@pytest.mark.parametrize(("arch", "dropped"), DROPPED, indirect=["arch"])
def test_the_comparison_sees_what_is_dropped(arch: str, dropped: str, model: Model) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")

    def change(name: str, values: Floats) -> Floats:
        if not name.endswith(dropped):
            return values
        return np.zeros_like(values) if "bias" in name else np.ones_like(values)

    net = FAMILIES[arch][1](model, change=change)
    assert_seen(model, lambda ids: net_logits(net, ids), 40)


def test_the_comparison_sees_the_wrong_pairs_turned(arch: str, model: Model) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    assert model.spec.rope is not None
    neighbours = replace(model.spec, rope=replace(model.spec.rope, halves=False))
    wrong = replace(model, program=FAMILIES[arch][0].build(neighbours, model.file.tensors))
    net = FAMILIES[arch][1](model)
    assert_seen(wrong, lambda ids: net_logits(net, ids), 40)


def test_the_same_tokens_as_llamacpp(path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    assert_same_tokens_as_llamacpp(path, prompts=(1, 9, 70), tokens=40)


def test_what_differs_from_llama(arch: str, model: Model) -> None:
    ops, spec = model.program.ops, model.spec
    assert spec.rope == RopeSpec(spec.head_dim, 1e6, halves=True)
    assert isinstance(ops[1], Linear) and len(ops[1].biases) == (3 if arch == "qwen2" else 0)
    norms = [op for op in ops if isinstance(op, Normalise)]
    assert len(norms) == (0 if arch == "qwen2" else 2 * spec.layers)
    assert all(isinstance(op.norm, RMSNorm) and op.norm.weight.shape == (spec.head_dim,) for op in norms)
    assert [type(op) for op in ops].index(Rope) > (1 if arch == "qwen2" else 3)  # after the norms


def test_a_tensor_that_is_missing_is_named(arch: str, model: Model) -> None:
    name = "blk.2.attn_k.bias" if arch == "qwen2" else "blk.2.attn_k_norm.weight"
    tensors = {key: info for key, info in model.file.tensors.items() if key != name}
    with pytest.raises(FileFormatError, match=f"'{name}' is missing"):
        FAMILIES[arch][0].build(model.spec, tensors)


@pytest.mark.parametrize("key", ["attention.sliding_window", "attention.scale", "rope.dimension_sections"])
def test_a_setting_that_would_change_the_model_is_refused_by_name(arch: str, model: Model, key: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{arch}\.{key}"):
        FAMILIES[arch][0].spec_from({**model.file.metadata, f"{arch}.{key}": 8}, model.file.tensors)
