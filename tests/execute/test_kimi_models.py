"""Kimi Linear whole: against transformers and llama.cpp, and the same answer whatever the schedule."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import support.models
from phaseline import _native
from phaseline.engine.types import Request, SamplingParams
from phaseline.files.gguf import open_gguf
from phaseline.files.model_file import open_model_file
from phaseline.program.ops.delta import DeltaAttend, chunked
from support.family_checks import (
    assert_near_llamacpp,
    assert_same_in_company,
    assert_same_on_any_schedule,
    assert_same_tokens_as_llamacpp,
)
from support.kimi import transformers_kimi, write_kimi
from support.models import Model, logits, open_model, page_table, relative_error
from support.schedules import Alone, Bench
from support.small_programs import same_bits
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
    """Float32 throughout on both sides: read whole, in chunks, and row by row as decode goes on from a state; on every
    level."""
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(write_kimi(tmp_path / "tiny.gguf", **KINDS[kind])) as file:
        model = open_model(file)
        ids = ids_of(model)
        want = transformers_logits(transformers_kimi(model), ids)
        assert relative_error(logits(model.reference(), ids), want) <= NEAR
        assert relative_error(logits(model.reference(), ids, chunk=37), want) <= NEAR
        assert relative_error(logits(model.reference(), ids[:40], chunk=1), want[:40]) <= NEAR
        for level in _native.levels():
            assert relative_error(logits(model.native(kv_type="f32", level=level), ids, chunk=41), want) <= NEAR


@pytest.mark.parametrize("mistake", ["no bias", "unlike decays", "late taps", "no output gate"])
def test_the_comparison_sees_mistakes(tmp_path: Path, mistake: str) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(write_kimi(tmp_path / "tiny.gguf")) as file:
        model = open_model(file)
        ids = ids_of(model, 60)
        want = transformers_logits(transformers_kimi(model, mistake=mistake), ids)
        assert relative_error(logits(model.reference(), ids), want) > 1e-2


def test_the_comparison_sees_a_state_that_is_not_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(write_kimi(tmp_path / "tiny.gguf")) as file:
        model = open_model(file)
        ids = ids_of(model, 60)
        want = logits(model.native(kv_type="f32"), ids)
        monkeypatch.setattr(support.models, "page_table", lambda program, order, turns: page_table(program, order, [0]))
        lost = logits(model.native(kv_type="f32"), ids, chunk=30)
        assert same_bits(lost[:30], want[:30]) and relative_error(lost[30:], want[30:]) > 1e-2


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
    assert_near_llamacpp(path, other)


@pytest.mark.parametrize("kind", ["as published", "strong decay"])
def test_the_same_tokens_as_llamacpp(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    path = write_kimi(tmp_path / "tiny.gguf", seed=7, **KINDS[kind])
    assert_same_tokens_as_llamacpp(path, prompts=(5, 40, 70), tokens=8, lead=0.02)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    """As it saves them: decays as logarithms, experts one by one, layers listed by name."""
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    with open_gguf(write_kimi(tmp_path / "tiny.gguf")) as gguf:
        model = open_model(gguf)
        transformers_kimi(model).save_pretrained(tmp_path / "folder")
        folder = open_model_file(tmp_path / "folder")
        ids = ids_of(model, 70)
        found = logits(open_model(folder).native(kv_type="f32"), ids)
        assert relative_error(found, logits(model.reference(), ids)) <= NEAR
        folder.close()


@pytest.fixture(scope="module", params=["as published", "strong decay", "fused, low rank of queries"])
def quantised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("quantised") / "tiny.gguf"
    sizes = {"dim": 32, "format": "Q4_1", "seed": 7, **KINDS[request.param], "rank": 64, "value": 32, "q_rank": 0}
    with open_gguf(write_kimi(path, **sizes)) as file:
        yield open_model(file)


def test_the_same_bits_for_any_schedule(quantised: Model) -> None:
    """Chunks, threads, modes and levels, over a context of more than one split of latent attention; in bf16."""
    assert_same_on_any_schedule(quantised, ids_of(quantised, 600), chunks=(7, 32, 250))


def test_company_in_the_batch(quantised: Model) -> None:
    assert_same_in_company(quantised, [ids_of(quantised, 5 + 9 * s if s else 60, seed=s) for s in range(8)])


def test_a_prefix_is_resumed_at_the_family_s_own_snapshots(quantised: Model) -> None:
    """At 512 positions, as far as both kinds of layers remember; another prompt, or less of it, begins anew."""
    executor = quantised.native(pages=160)
    alone, whole = Alone(executor, 160), ids_of(quantised, 700)
    batch = {
        name: Request(name, tokens, SamplingParams(max_tokens=4, ignore_eos=True, prompt_logprobs=0 if n else None))
        for n, (name, tokens) in enumerate({"hit": whole[:600], "short": whole[:500], "other": whole[1:600]}.items())
    }
    bench = Bench(executor, chunk=400, pages=160)
    bench.run([Request("first", whole, SamplingParams(max_tokens=4, ignore_eos=True))])
    answers = bench.run(batch.values())
    alone.check(batch.values(), answers, bits=True)
    assert [answers[name, 0].cached for name in batch] == [512, 0, 0]
    assert answers["hit", 0].tokens == alone(batch["hit"])["hit", 0].tokens
