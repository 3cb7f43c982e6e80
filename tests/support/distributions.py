"""Comparing next-token distributions; logits have shape (positions, vocab)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BLOCK = 50  # positions at a time: in float64 a large vocabulary takes much memory


@dataclass(frozen=True)
class Comparison:
    kl: float  # mean KL(p || q) over the positions, in nats
    top1: float  # share of positions where the most likely token is the same
    perplexity_ratio: float  # q's over p's, of the text itself


def log_softmax(logits: NDArray[Any]) -> Floats:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def compare(p_logits: NDArray[Any], q_logits: NDArray[Any], ids: Sequence[int]) -> Comparison:
    """Two models' logits after each of `ids`; the text's perplexity is over ids[1:]."""
    kl, same, surprise = [], [], []
    for at in range(0, len(p_logits), _BLOCK):
        p, q = log_softmax(p_logits[at : at + _BLOCK]), log_softmax(q_logits[at : at + _BLOCK])
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same.append(p.argmax(axis=1) == q.argmax(axis=1))
        following = list(ids[at + 1 : min(at + 1 + _BLOCK, len(p_logits))])
        rows = np.arange(len(following))
        surprise.append(p[rows, following] - q[rows, following])
    ratio = np.exp(np.concatenate(surprise).mean())
    return Comparison(float(np.concatenate(kl).mean()), float(np.concatenate(same).mean()), float(ratio))
