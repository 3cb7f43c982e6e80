"""Gemma 3: local and global layers of two rotations, a window, norms before and after, a scaled embedding."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.families import gemma3
from phaseline.families.gemma3 import Gemma3Spec
from phaseline.files.gguf import open_gguf
from phaseline.program.ops import Attend, Embed, Normalise, RopeSpec
from phaseline.program.state import PagedKV, SlidingKV
from support.family_checks import assert_every_schedule, assert_same_tokens_as_llamacpp, assert_seen
from support.models import Model, open_model
from support.tiny import write_decoder
from support.transformers_nets import Floats, gemma3_net, net_logits

WINDOW, TOKENS = 40, 150  # more than two windows, two chunks of 64, and four pages
SIZES: dict[str, Any] = {
    "layers": 7,
    "head_dim": 32,
    "kv_heads": 1,
    "tied": True,
    "rope_theta": 1e6,
    "embedding_std": 0.2,
}


def write(path: Path, seed: int = 4, **extra: Any) -> Path:
    keys = {"attention.sliding_window": WINDOW, **{name.replace("__", "."): value for name, value in extra.items()}}
    meta = {f"gemma3.{name}": value for name, value in keys.items() if value is not None}
    return write_decoder(path, "gemma3", head_norms=True, post_norms=True, seed=seed, extra=meta, **SIZES)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gemma3") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with open_gguf(path) as file:
        yield open_model(file)


def spec_of(model: Model) -> Gemma3Spec:
    return cast(Gemma3Spec, model.spec)


def test_every_schedule_gives_what_transformers_gives(model: Model) -> None:
    """Chunks below the window, at its edges and above it."""
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    net = gemma3_net(model)
    chunks = (7, WINDOW - 1, WINDOW, WINDOW + 1, 64)
    assert_every_schedule(model, lambda ids: net_logits(net, ids), TOKENS, chunks)


MISTAKES: dict[str, dict[str, Any]] = {
    "no window": {"window": TOKENS},
    "a window one too wide": {"window": WINDOW + 1},
    "a window on a global layer": {"local": (True,) * 7},
    "another layer is global": {"local": (True, True, True, True, False, True, True)},
    "one base for all": {"local_rope": RopeSpec(32, 1e6, halves=True)},
    "neighbours turned": {"local_rope": RopeSpec(32, 1e4)},
    "scores not scaled": {"scale": 1.0},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_comparison_sees_mistakes(model: Model, mistake: str) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")
    wrong = replace(model, program=gemma3.build(replace(spec_of(model), **MISTAKES[mistake]), model.file.tensors))
    net = gemma3_net(model)
    assert_seen(wrong, lambda ids: net_logits(net, ids), 100)


@pytest.mark.parametrize("skipped", ["post_attention_norm", "post_ffw_norm", "attn_q_norm"])
def test_the_comparison_sees_a_norm_skipped(model: Model, skipped: str) -> None:
    pytest.importorskip("transformers", reason="the reference transformers is not installed")

    def change(name: str, values: Floats) -> Floats:
        return values * 0 + 1 if skipped in name else values

    net = gemma3_net(model, change=change)
    assert_seen(model, lambda ids: net_logits(net, ids), 40)


STRETCHED = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}


@pytest.mark.parametrize(
    ("seed", "extra"),
    [(3, {}), (19, {"attention__sliding_window_pattern": 3, "rope__freq_base_swa": 5000.0}), (9, STRETCHED)],
)
def test_the_same_tokens_as_llamacpp(tmp_path: Path, seed: int, extra: dict[str, Any]) -> None:
    """With the keys of older files, of newer ones, and with global layers stretched, as the larger sizes have them.

    Its gelu comes from a table of half precision, which was seen to move these logits by up to 0.01.
    """
    pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")
    path = write(tmp_path / "tiny.gguf", seed, **extra)
    assert_same_tokens_as_llamacpp(path, prompts=(9, 120), tokens=16, lead=0.01)


def settings(model: Model, **changed: Any) -> Gemma3Spec:
    meta = {**model.file.metadata, **{f"gemma3.{name.replace('__', '.')}": value for name, value in changed.items()}}
    return gemma3.spec_from({key: value for key, value in meta.items() if value is not None}, model.file.tensors)


def test_older_and_newer_keys_say_the_same(model: Model) -> None:
    spec = spec_of(model)
    assert spec.local == (True,) * 5 + (False, True)
    assert (spec.window, spec.scale) == (WINDOW, pytest.approx(32**-0.5))
    assert spec.rope == RopeSpec(32, 1e6, halves=True) and spec.local_rope == RopeSpec(32, 1e4, halves=True)
    assert settings(model, attention__sliding_window_pattern=6, rope__freq_base_swa=10000.0) == spec
    listed = [True] * 5 + [False, True]
    assert settings(model, attention__sliding_window_pattern=listed) == spec
    assert settings(model, rope__freq_base=None) == spec
    assert settings(model, attention__scale=0.25).scale == 0.25


def test_global_layers_alone_are_stretched(model: Model) -> None:
    spec = settings(model, rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert spec.rope == RopeSpec(32, 1e6, halves=True, stretch=8.0) and spec.local_rope == spec_of(model).local_rope


def test_the_largest_size_scales_by_width_over_heads(model: Model) -> None:
    assert settings(model, block_count=62, attention__sliding_window_pattern=None).scale == (64 // 4) ** -0.5


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("attention__sliding_window", None, FileFormatError),
        ("attention__sliding_window_pattern", [True, False], FileFormatError),
        ("attention__sliding_window_pattern", 0, FileFormatError),
        ("attention__sliding_window_pattern", [1, 1, 1, 1, 1, 0, 1], FileFormatError),
        ("final_logit_softcapping", 30.0, UnsupportedError),
        ("rope__dimension_count_swa", 16, UnsupportedError),
        ("attention__key_length_swa", 16, UnsupportedError),
        ("anything_new", 1, UnsupportedError),
    ],
)
def test_a_setting_that_is_not_built_is_named(model: Model, key: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"gemma3\.{key.replace('__', '.')}"):
        settings(model, **{key: value})


def test_memory_is_of_two_kinds(model: Model) -> None:
    """Six local layers need no more than the window; one global layer keeps all."""
    program = model.program
    assert program.state == (SlidingKV(6, 1, 32, WINDOW), PagedKV(1, 1, 32))
    attends = [op for op in program.ops if isinstance(op, Attend)]
    assert [(op.group, op.layer) for op in attends] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (0, 5)]
    assert [op.window for op in attends] == [WINDOW] * 5 + [None, WINDOW]
    assert isinstance(program.ops[0], Embed) and program.ops[0].scale == 8.0
    assert sum(isinstance(op, Normalise) for op in program.ops) == 7 * 4
