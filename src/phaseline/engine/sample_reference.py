"""What the native sampler computes, in numpy and whole numbers: the specification that it is tested against."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.engine.types import SamplingParams

_LARGEST = float(np.finfo(np.float32).max)
_WORD = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32 (Salmon et al. 2011): four random words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _WORD, (a >> 32) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def choose(
    logits: NDArray[np.float32],
    params: SamplingParams,
    *,
    seed: int,
    index: int,
    position: int,
    prompt: Sequence[int],
    generated: Sequence[int],
    stop_ids: Collection[int] = (),
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """The token at `position`, from finite or -inf `logits` (vocab,), not all -inf where `allowed` (vocab,)."""
    if allowed is not None:
        logits = np.where(allowed, logits, np.float32(-np.inf))
    changed = change(logits, params, prompt, generated, stop_ids)
    if params.temperature == 0:
        return int(np.argmax(changed))  # the first of the largest
    tokens = kept(changed, params)
    low, high, *_ = philox4x32((position & _WORD, position >> 32, index, 0), (seed & _WORD, seed >> 32))
    sums = np.cumsum(masses(changed, params.temperature)[tokens])
    drawn = np.uint64(((high << 32 | low) * int(sums[-1])) >> 64)
    return int(tokens[np.searchsorted(sums, drawn, side="right")])


def change(
    logits: NDArray[np.float32],
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    stop_ids: Collection[int],
) -> NDArray[np.float32]:
    """The logits after bias, penalties and min_tokens; rounded to float32 after each, finite ones kept finite."""
    z = logits.copy()
    for token, bias in params.logit_bias.items():
        z[token] = _bounded(float(z[token]) + bias)
    for token in {*prompt, *generated}:
        value, count = float(z[token]), generated.count(token)
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        z[token] = _bounded(value) if np.isfinite(z[token]) else z[token]
    if len(generated) < params.min_tokens:
        z[list(stop_ids)] = -np.inf
    return z


def kept(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.intp]:
    """Ids that min_p, top_k and top_p leave, ascending."""
    order = np.argsort(-logits, kind="stable")  # larger first, then the lower id
    order = order[np.isfinite(logits[order])]
    if params.min_p > 0:
        lowest = np.float32(logits[order[0]] + params.temperature * np.log(params.min_p))
        order = order[logits[order] >= lowest]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        sums = np.cumsum(masses(logits, params.temperature)[order])
        target = np.uint64(math.ceil(params.top_p * float(sums[-1])))
        order = order[: 1 + int(np.searchsorted(sums, target))]
    return np.sort(order)


def masses(logits: NDArray[np.float32], temperature: float) -> NDArray[np.uint64]:
    """Each token's probability as a multiple of the likeliest one's, in units of 2^-40: exp((z - max) / temperature).

    In float32, as 2^(n + f) with n whole and |f| <= 1/2, and 2^f by the Taylor series of exp(f ln 2).
    """
    scale = np.float32(min(math.log2(math.e) / temperature, _LARGEST))
    with np.errstate(over="ignore"):  # a temperature near 0 sends all but the largest to -inf
        power = np.maximum((logits - logits.max()) * scale, np.float32(-100))
    n = np.rint(power)
    series = np.zeros_like(power)
    for k in range(7, -1, -1):
        series = series * (power - n) + np.float32(math.log(2) ** k / math.factorial(k))
    scaled: NDArray[np.float64] = np.ldexp(series.astype(np.float64), n.astype(int) + 40)
    return np.rint(scaled).astype(np.uint64)


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Natural log-probabilities over the last axis."""
    below = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return result


def _bounded(value: float) -> float:
    return value if value == -np.inf else min(max(value, -_LARGEST), _LARGEST)
