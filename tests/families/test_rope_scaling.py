"""Rotary positions stretched over a longer context: linear, by Llama 3's factors, yarn."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline.errors import UnsupportedError
from phaseline.families import llama
from phaseline.files.gguf import open_gguf
from phaseline.program.ops import RopeSpec, Yarn
from support.family_checks import assert_every_schedule, assert_same_tokens_as_llamacpp, assert_seen
from support.models import open_model
from support.tiny import write_llama
from support.transformers_nets import llama_net, net_logits

TOKENS, SIZE, BASE = 150, 32, 10000.0
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def llama3_factors() -> NDArray[np.float64]:
    """What Llama 3 divides a pair's frequency by: 1 below a wavelength of 64 / 4, 8 above 64, blended between."""
    frequency = BASE ** (-np.arange(0, SIZE, 2) / SIZE)
    wavelength = 2 * math.pi / frequency
    smooth = (64 / wavelength - 1) / (4 - 1)
    blended = 1 / ((1 - smooth) / 8 + smooth)
    return np.where(wavelength < 64 / 4, 1.0, np.where(wavelength > 64, 8.0, blended))


def keys(**scaling: Any) -> dict[str, Any]:
    return {f"llama.rope.scaling.{name}": value for name, value in scaling.items()}


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
# What the file says, and what transformers is told.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "linear": ({"extra": keys(type="linear", factor=4.0)}, {"rope_type": "linear", "factor": 4.0}),
    "llama3": ({"rope_factors": llama3_factors()}, {"rope_type": "llama3", **LLAMA3}),
    "yarn": (
        {"extra": keys(type="yarn", factor=4.0, original_context_length=64)},
        {"rope_type": "yarn", **YARN},
    ),
    "yarn with more attention": (
        {"extra": keys(type="yarn", factor=4.0, original_context_length=64, attn_factor=1.2)},
        {"rope_type": "yarn", **YARN, "attention_factor": 1.2 * (0.1 * math.log(4) + 1)},
    ),
    "yarn of other bounds": (
        {"extra": keys(type="yarn", factor=4.0, original_context_length=64, yarn_beta_fast=8.0, yarn_beta_slow=2.0)},
        {"rope_type": "yarn", **YARN, "beta_fast": 8.0, "beta_slow": 2.0},
    ),
}


def tiny(folder: Path, case: str) -> Path:
    return write_llama(folder / "tiny.gguf", head_dim=SIZE, layers=2, seed=2, **CASES[case][0])


@pytest.mark.parametrize("case", CASES)
def test_every_schedule_gives_what_transformers_gives(tmp_path: Path, case: str) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(tiny(tmp_path, case)) as file:
        model = open_model(file)
        net = llama_net(model, rope=CASES[case][1])
        assert_every_schedule(model, lambda ids: net_logits(net, ids), TOKENS)
        unscaled = llama_net(model)
        assert_seen(model, lambda ids: net_logits(unscaled, ids), TOKENS)


@pytest.mark.parametrize("case", [case for case in CASES if "bounds" not in case])
def test_the_same_tokens_as_llamacpp(tmp_path: Path, case: str) -> None:
    """But for yarn's bounds, which llama.cpp as run here does not take from the file."""
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    assert_same_tokens_as_llamacpp(tiny(tmp_path, case), prompts=(9, 120), tokens=40)


def rope_of(path: Path, **scaling: Any) -> RopeSpec | None:
    with open_gguf(path) as file:
        return llama.spec_from({**file.metadata, **keys(**scaling)}, file.tensors).rope


def test_what_each_key_means(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "plain.gguf", context=256)
    plain = RopeSpec(16, BASE)
    assert rope_of(path) == rope_of(path, factor=0.0) == rope_of(path, type="none", factor=4.0) == plain
    assert rope_of(path, factor=4.0) == rope_of(path, type="linear", factor=4.0) == RopeSpec(16, BASE, stretch=4.0)
    yarn = rope_of(path, type="yarn", factor=4.0, finetuned=True)
    assert yarn == RopeSpec(16, BASE, yarn=Yarn(4.0, 256, magnitude=0.1 * math.log(4) + 1))
    assert rope_of(path, type="yarn", factor=1.0) == RopeSpec(16, BASE, yarn=Yarn(1.0, 256))


@pytest.mark.parametrize(
    ("name", "value"), [("type", "longrope"), ("yarn_ext_factor", 0.5), ("yarn_log_multiplier", 0.1), ("alpha", 2.0)]
)
def test_other_ways_are_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    path = write_llama(tmp_path / "plain.gguf")
    with pytest.raises(UnsupportedError, match=rf"llama\.rope\.scaling\.{name}"):
        rope_of(path, **{"type": "yarn", name: value})
