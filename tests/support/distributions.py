"""Comparing next-token distributions, all in float64; logits have shape (positions, vocab)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def log_softmax(logits: NDArray[Any]) -> Floats:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


def kl(p: Floats, q: Floats) -> Floats:
    """KL(p || q) of each row, in nats, from log-probabilities."""
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))


def top1_agreement(p: NDArray[Any], q: NDArray[Any]) -> float:
    return float((p.argmax(axis=-1) == q.argmax(axis=-1)).mean())


def perplexity(log_probs: Floats, ids: Sequence[int]) -> float:
    """Of ids[1:], each predicted by the row of the position before it."""
    rows = np.arange(len(ids) - 1)
    return float(np.exp(-log_probs[rows, list(ids[1:])].mean()))
