"""Kimi Linear whole: against transformers and llama.cpp, and the same answer whatever the schedule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.files.gguf import open_gguf
from phaseline.files.model_file import open_model_file
from phaseline.program.ops.delta import DeltaAttend, chunked
from support.distributions import log_softmax
from support.family_checks import assert_same_tokens_as_llamacpp
from support.kimi import transformers_kimi, write_kimi
from support.llamacpp import llamacpp
from support.models import Model, logits, open_model, relative_error
from support.tiny import EOS
from support.transformers_llama import transformers_logits

LENGTH = 150
NEAR = 1e-4  # float32 on both sides, of the largest logit
KINDS: dict[str, dict[str, Any]] = {
    "as published": {},
    "strong decay": {"harsh": True},
    "fused, low rank of queries": {"fused": True, "q_rank": 40, "rank": 40, "pe": 8, "nope": 24, "value": 20},
    "one head, two taps": {"heads": 1, "taps": 2, "dim": 24, "shared": 2},
    "latent first": {"recurrent": (False, True, False), "dense": 0, "active": 8},
    "recurrent alone": {"recurrent": (True, True)},
    "latent alone": {"recurrent": (False, False)},
}


def ids_of(model: Model, length: int = LENGTH, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, 258, length)]


@pytest.mark.parametrize("kind", KINDS)
def test_against_transformers(tmp_path: Path, kind: str) -> None:
    """Float32 throughout on both sides: read whole, in chunks, and row by row as decode goes on from a state."""
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(write_kimi(tmp_path / "tiny.gguf", **KINDS[kind])) as file:
        model = open_model(file)
        ids = ids_of(model)
        want = transformers_logits(transformers_kimi(model), ids)
        assert relative_error(logits(model.reference(), ids), want) <= NEAR
        assert relative_error(logits(model.reference(), ids, chunk=37), want) <= NEAR
        assert relative_error(logits(model.reference(), ids[:40], chunk=1), want[:40]) <= NEAR


@pytest.mark.parametrize("mistake", ["no bias", "unlike decays", "late taps", "no output gate"])
def test_the_comparison_sees_mistakes(tmp_path: Path, mistake: str) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(write_kimi(tmp_path / "tiny.gguf")) as file:
        model = open_model(file)
        ids = ids_of(model, 60)
        want = transformers_logits(transformers_kimi(model, mistake=mistake), ids)
        assert relative_error(logits(model.reference(), ids), want) > 1e-2


@pytest.mark.parametrize("kind", ["as published", "strong decay"])
def test_the_chunk_form_through_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It answers as the recurrence does, over chunks of any length that each go on from the state before."""
    with open_gguf(write_kimi(tmp_path / "tiny.gguf", **KINDS[kind])) as file:
        model = open_model(file)
        ids = ids_of(model)
        want = logits(model.reference(dtype=np.float64), ids)
        monkeypatch.setattr(DeltaAttend, "reference", lambda op, ctx: op.attend(ctx, chunked))
        for chunk in (150, 37, 1):
            found = logits(model.reference(dtype=np.float64), ids, chunk=chunk)
            assert relative_error(found, want) <= 1e-10


@pytest.mark.parametrize("kind", ["as published", "strong decay"])
def test_against_llamacpp(tmp_path: Path, kind: str) -> None:
    """Its log-probabilities of the 20 most likely tokens, within what other families have on float32 weights; a model
    with one expert fewer is far from it."""
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    sizes = {**KINDS[kind], "seed": 3}
    path = write_kimi(tmp_path / "tiny.gguf", **sizes)
    other = write_kimi(tmp_path / "other.gguf", **sizes, active=2)
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


@pytest.mark.parametrize("kind", ["as published", "strong decay"])
def test_the_same_tokens_as_llamacpp(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    path = write_kimi(tmp_path / "tiny.gguf", seed=7, **KINDS[kind])
    assert_same_tokens_as_llamacpp(path, prompts=(5, 40, 70), tokens=8, lead=0.02, reference=True)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    """As it saves them: decays as logarithms, experts one by one, layers listed by name."""
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(write_kimi(tmp_path / "tiny.gguf")) as gguf:
        model = open_model(gguf)
        transformers_kimi(model).save_pretrained(tmp_path / "folder")
        folder = open_model_file(tmp_path / "folder")
        ids = ids_of(model, 70)
        found = logits(open_model(folder).reference(), ids)
        assert relative_error(found, logits(model.reference(), ids)) <= NEAR
        folder.close()
