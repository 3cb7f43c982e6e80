"""The choice of experts at every level: the very ids of the specification, ties included, and shares within bounds."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.errors import UnsupportedError
from phaseline.program.ops import Router, route
from support.bounds import EXP, U, assert_within, gamma
from support.memory_file import MemoryFile
from support.small_programs import Small, assert_levels_agree, native, reference, run, same_bits, split

TOKENS = 200
APART = 1e-5  # that two ranks differ by if they differ at all: far beyond float32's errors near one

ROUTERS: list[dict[str, Any]] = [
    {"experts": 8, "active": 2, "renormalise": True},  # mixtral
    {"experts": 64, "active": 8},  # olmoe
    {"experts": 128, "active": 8, "renormalise": True},  # qwen3_moe
    {"experts": 64, "active": 6, "scale": 16.0, "groups": 8, "kept_groups": 3},  # deepseek_v2
    {"experts": 16, "active": 3, "scores": "sigmoid", "renormalise": True, "scale": 2.5},
    {"experts": 64, "active": 8, "scores": "sigmoid", "groups": 8, "kept_groups": 4, "group_best": 2, "scale": 2.5,
     "renormalise": True},  # deepseek_v3
    {"experts": 5, "active": 5},
    {"experts": 1, "active": 1, "scores": "sigmoid"},
    {"experts": 33, "active": 17, "scores": "sigmoid"},
]  # fmt: skip


def logits_of(rng: np.random.Generator, experts: int) -> NDArray[np.float32]:
    """On a grid, so that many tie exactly and no two are nearly the same."""
    return (rng.integers(-16, 17, (TOKENS, experts)) / 4).astype(np.float32)


def check(router: Router, logits: NDArray[np.float32], bias: NDArray[np.float32] | None) -> None:
    file = MemoryFile()
    small = Small(file)
    x = small.input("logits", logits)
    outs = list(route(small.builder, x, router, None if bias is None else file.add("bias", bias)))
    program = small.finish(outs, len(logits))
    tokens = list(range(len(logits)))
    ids, shares = split(run(reference(file, program), tokens), outs)
    results = {}
    for level in _native.levels():
        executor = native(file, program, level=level, max_rows=len(logits), threads=2)
        results[level] = run(executor, tokens)
        got_ids, got_shares = split(results[level], outs)
        assert np.array_equal(got_ids, ids)
        # exp and a quotient for each score, a sum over all experts or the chosen, two more quotients and the scale.
        relative = 3 * EXP + gamma(router.experts + router.active + 12) + np.abs(logits).max() * 2 * U
        assert_within(got_shares, shares, np.abs(shares) * relative)
        assert same_bits(run(executor, tokens[5:6]), results[level][5:6])
    assert_levels_agree(results)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("settings", ROUTERS)
def test_every_router(settings: dict[str, Any], biased: bool) -> None:
    rng, router = np.random.default_rng(len(str(settings))), Router(**settings)
    logits = logits_of(rng, router.experts)
    bias = (rng.integers(-4, 5, router.experts) / 64).astype(np.float32) if biased else None
    p = np.exp(logits.astype(np.float64))
    p = p / p.sum(axis=1, keepdims=True) if router.scores == "softmax" else p / (1 + p)
    rank = p if bias is None else p + bias
    if biased:  # keep the rows in which no two different ranks come close
        gaps = np.diff(np.sort(rank, axis=1), axis=1)
        clear = ((gaps < 1e-15) | (gaps > APART)).all(axis=1)
        logits = logits[clear]
        assert len(logits) > 10 or router.experts > 30
    if len(logits):
        check(router, logits, bias)


def test_ties_go_to_the_lower_id() -> None:
    router = Router(6, 3)
    file = MemoryFile()
    small = Small(file)
    logits = np.array([[0, 1, 1, 0, 1, 1], [0] * 6, [2, 0, 0, 0, 0, 2]], np.float32)
    outs = list(route(small.builder, small.input("logits", logits), router))
    program = small.finish(outs, 3)
    for executor in (reference(file, program), *(native(file, program, level=level) for level in _native.levels())):
        ids, _ = split(run(executor, [0, 1, 2]), outs)
        assert ids.tolist() == [[1, 2, 4], [0, 1, 2], [0, 5, 1]]


@pytest.mark.parametrize("level", _native.levels())
def test_the_bias_selects_but_does_not_weight(level: str) -> None:
    file = MemoryFile()
    small = Small(file)
    bias = file.add("bias", np.array([0, 0, 0, 9], np.float32))
    outs = list(route(small.builder, small.input("l", np.zeros((1, 4))), Router(4, 2, "sigmoid", scale=3.0), bias))
    ids, shares = split(run(native(file, small.finish(outs, 1), level=level), [0]), outs)
    assert ids.tolist() == [[3, 0]] and shares.tolist() == [[1.5, 1.5]]


@pytest.mark.parametrize("level", _native.levels())
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_what_is_no_number_stays_visible_and_within_the_experts(scores: str, level: str) -> None:
    """NaN is chosen last; where it must be chosen its share is NaN, and ids are distinct experts all the same."""
    logits = np.array([[np.nan] * 40, [np.nan, *range(39)]], np.float32)
    router = Router(40, 40 if scores == "sigmoid" else 3, scores, groups=4, kept_groups=4, group_best=2)
    found = []
    for shown in (0, 1):
        file = MemoryFile()
        small = Small(file)
        out = route(small.builder, small.input("l", logits), router)[shown]
        found += split(run(native(file, small.finish([out], 2), level=level), [0, 1]), [out])
    ids, shares = found
    assert all(len(set(row)) == router.active and set(row) <= set(range(40)) for row in ids.tolist())
    assert np.isnan(shares).any(axis=1).all()
    assert scores == "softmax" or ids[1, -1] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((4, 5), "5 active experts of 4"),
        ((4, 2, "tanh"), "softmax, sigmoid"),
        ((6, 2, "softmax", 4, 2), "equal groups"),
        ((8, 2, "softmax", 4, 5), "kept groups"),
        ((8, 5, "softmax", 4, 2), "too small"),
    ],
)
def test_settings_that_no_router_has(settings: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Router(*settings)
