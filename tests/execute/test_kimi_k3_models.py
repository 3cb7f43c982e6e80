"""Kimi K3 whole: against its equations in float64, and against llama.cpp."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.files.gguf import open_gguf
from support.distributions import log_softmax
from support.family_checks import assert_same_tokens_as_llamacpp
from support.kimi_k3 import Equations, write_kimi_k3
from support.llamacpp import llamacpp
from support.models import Model, logits, open_model, relative_error
from support.tiny import EOS

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
    """In float64 both differ by the order of their sums alone: some hundred terms in some ten layers, each 1e-16. In
    float32 the reference is a few hundred roundings away."""
    with open_gguf(write_kimi_k3(tmp_path / "tiny.gguf", **KINDS[kind])) as file:
        model = open_model(file)
        ids = ids_of(model)
        want = Equations(model).logits(ids)
        for chunk in (LENGTH, 17, 1):
            assert relative_error(logits(model.reference(dtype=np.float64), ids, chunk=chunk), want) <= 1e-12
        assert relative_error(logits(model.reference(), ids, chunk=33), want) <= 1e-4


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with open_gguf(write_kimi_k3(tmp_path_factory.mktemp("plain") / "tiny.gguf")) as file:
        yield open_model(file)


@pytest.mark.parametrize("mistake", Equations.MISTAKES)
def test_the_comparison_sees_mistakes(plain: Model, mistake: str) -> None:
    ids = ids_of(plain, 30)
    wrong = Equations(plain, mistake).logits(ids)
    assert relative_error(logits(plain.reference(dtype=np.float64), ids), wrong) > 1e-2


@pytest.mark.parametrize("kind", ["as published", "a full bank"])
def test_against_llamacpp(tmp_path: Path, kind: str) -> None:
    """Its log-probabilities of the 20 most likely tokens, within what other families have on float32 weights; a model
    with one expert fewer is far from it."""
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    sizes = {**KINDS[kind], "seed": 3}
    path = write_kimi_k3(tmp_path / "tiny.gguf", **sizes)
    other = write_kimi_k3(tmp_path / "other.gguf", **sizes, active=2)
    with open_gguf(path) as file, open_gguf(other) as fewer, llamacpp(path, context=512, float32_state=True) as peer:
        model, wrong = open_model(file), open_model(fewer)
        ids = ids_of(model, 120, seed=1)
        ours, theirs = (log_softmax(logits(m.reference(), ids, chunk=33)) for m in (model, wrong))
        # It tells nothing of the end, nor of a byte that is no character by itself (2 is the token of byte 0).
        silent = {EOS, *range(2 + 128, 2 + 256)}
        lengths = [n for n in range(9, 120, 7) if ours[n - 1].argmax() not in silent]
        for n in lengths[:5]:
            top, expected = peer.top(ids[:n], 20)
            assert np.abs(ours[n - 1][top] - expected).max() < 0.03
            assert np.abs(theirs[n - 1][top] - expected).max() > 0.1


@pytest.mark.parametrize("kind", ["as published", "a full bank"])
def test_the_same_tokens_as_llamacpp(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    path = write_kimi_k3(tmp_path / "tiny.gguf", seed=2, **KINDS[kind])
    assert_same_tokens_as_llamacpp(path, prompts=(5, 40, 70), tokens=8, lead=0.02, reference=True)
