"""Kimi K3 whole: against its equations in float64 and llama.cpp, and the same bits whatever the schedule."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline import _native
from phaseline.files.gguf import open_gguf
from support.bounds import gamma
from support.family_checks import (
    assert_near_llamacpp,
    assert_same_in_company,
    assert_same_on_any_schedule,
    assert_same_tokens_as_llamacpp,
)
from support.kimi_k3 import Equations, write_kimi_k3
from support.models import Model, logits, open_model, relative_error

LENGTH = 70
KINDS: dict[str, dict[str, Any]] = {
    "as published": {},
    "a full bank": {"layers": 8, "bank_every": 1, "latent_layers": (3, 7)},
    "odd sizes": {
        "heads": 3,
        "dim": 24,
        "nope": 20,
        "pe": 4,
        "value": 40,
        "rank": 36,
        "taps": 3,
        "width": 96,
        "dense": 0,
    },
    "one head, one layer banked": {"heads": 1, "dim": 64, "bank_every": 99, "experts": 16, "active": 16, "dense": 2},
    "latent alone": {"layers": 2, "latent_layers": (0, 1)},
}


def ids_of(model: Model, length: int = LENGTH, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, 258, length)]


@pytest.mark.parametrize("kind", KINDS)
def test_against_the_equations(tmp_path: Path, kind: str) -> None:
    """In float64 both differ by the order of their sums alone: some hundred terms in some ten layers, each 1e-16.

    What a float32 product of n terms answers is the exact answer for weights of which each is off by gamma(2 n) at most
    (Higham 2002, 3.5). The equations with weights that are off by that much, at random, show what that does to logits.
    """
    with open_gguf(write_kimi_k3(tmp_path / "tiny.gguf", **KINDS[kind])) as file:
        model = open_model(file)
        ids = ids_of(model)
        want = Equations(model).logits(ids)
        for chunk in (LENGTH, 17):
            assert relative_error(logits(model.reference(dtype=np.float64), ids, chunk=chunk), want) <= 1e-12
        terms = max(info.shape[-1] for info in file.tensors.values())
        near = relative_error(Equations(model, moved=gamma(2 * terms)).logits(ids), want)
        assert near < 5e-3
        assert relative_error(logits(model.reference(), ids, chunk=33), want) <= near
        for level in _native.levels():
            assert relative_error(logits(model.native(kv_type="f32", level=level), ids, chunk=33), want) <= near


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with open_gguf(write_kimi_k3(tmp_path_factory.mktemp("plain") / "tiny.gguf")) as file:
        yield open_model(file)


@pytest.mark.parametrize("mistake", Equations.MISTAKES)
def test_the_comparison_sees_mistakes(plain: Model, mistake: str) -> None:
    ids = ids_of(plain, 30)
    wrong = Equations(plain, mistake).logits(ids)
    assert relative_error(logits(plain.native(kv_type="f32"), ids), wrong) > 1e-2


@pytest.mark.parametrize("kind", ["as published", "a full bank"])
def test_against_llamacpp(tmp_path: Path, kind: str) -> None:
    """Its log-probabilities of the 20 most likely tokens, within what other families have on float32 weights; a model
    with one expert fewer is far from it."""
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    sizes = {**KINDS[kind], "seed": 3}
    path = write_kimi_k3(tmp_path / "tiny.gguf", **sizes)
    other = write_kimi_k3(tmp_path / "other.gguf", **sizes, active=2)
    assert_near_llamacpp(path, other)


@pytest.mark.parametrize("kind", ["as published", "a full bank"])
def test_the_same_tokens_as_llamacpp(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    path = write_kimi_k3(tmp_path / "tiny.gguf", seed=2, **KINDS[kind])
    assert_same_tokens_as_llamacpp(path, prompts=(5, 40, 70), tokens=8, lead=0.02)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Routed experts in IQ1_S, the rest in Q8_0, as in the file whose speed was published."""
    sizes = {"width": 256, "ff": 256, "space": 256, "expert_ff": 256, "dim": 32, "rank": 64, "q_rank": 64, "nope": 32}
    path = tmp_path_factory.mktemp("quantised") / "tiny.gguf"
    formats = {"_exps.": "IQ1_S", "attn_k_b": "F16"}
    with open_gguf(write_kimi_k3(path, format="Q8_0", formats=formats, value=32, seed=7, **sizes)) as file:
        assert file.tensors["blk.1.ffn_up_exps.weight"].format.name == "IQ1_S"
        yield open_model(file)


def test_the_same_bits_for_any_schedule(quantised: Model) -> None:
    """Chunks, threads, modes and levels, over a context of more than one split; in bf16, as it is by default."""
    assert_same_on_any_schedule(quantised, ids_of(quantised, 600), chunks=(7, 250))


def test_company_in_the_batch(quantised: Model) -> None:
    assert_same_in_company(quantised, [ids_of(quantised, 5 + 9 * s if s else 60, seed=s) for s in range(8)])
