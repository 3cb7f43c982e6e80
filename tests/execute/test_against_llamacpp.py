"""The native executor against llama.cpp, taken as a black box over its own HTTP server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline.files.gguf import open_gguf
from support.distributions import log_softmax
from support.family_checks import greedy
from support.llamacpp import llamacpp
from support.models import Model, logits, open_model
from support.tiny import write_llama

pytest.importorskip("xllamacpp", reason="the reference xllamacpp is not installed")

TINY: list[dict[str, Any]] = [
    {},
    {"tied": True, "heads": 4, "kv_heads": 1},
    {"layers": 3, "head_dim": 32, "vocab": 1000, "rope_theta": 1e6},
    {"layers": 3, "width": 96, "heads": 6, "kv_heads": 3, "ff": 80},
]


@pytest.mark.parametrize("seed", range(len(TINY)))
def test_the_same_tokens_on_float32_weights(tmp_path: Path, seed: int) -> None:
    """Both keep float32 throughout; their logits then differ by some 1e-6, and no choice here is that close."""
    path = write_llama(tmp_path / "tiny.gguf", seed=seed, **TINY[seed])
    with open_gguf(path) as file, llamacpp(path, context=256, float32_state=True) as peer:
        model = open_model(file)
        for n in (1, 9, 70):
            prompt = np.random.default_rng(n).integers(2, 258, n).tolist()
            tokens, lead = greedy(model.native(kv_type="f32"), prompt, 40)
            assert lead > 1e-4 and len(set(tokens)) > 3
            assert peer.greedy(prompt, 40) == tokens
            assert greedy(model.reference(), prompt, 40)[0] == tokens


def test_other_weights_give_other_tokens(tmp_path: Path) -> None:
    """What the test above compares does depend on the model."""
    path = write_llama(tmp_path / "tiny.gguf", seed=0)
    with open_gguf(write_llama(tmp_path / "other.gguf", seed=1)) as file, llamacpp(path, context=256) as peer:
        assert peer.greedy([5, 6, 7], 40) != greedy(open_model(file).native(), [5, 6, 7], 40)[0]


def compare(tops: Sequence[tuple[list[int], list[float]]], ours: NDArray[np.float64]) -> tuple[float, float]:
    """Mean KL(theirs || ours), and how often the most likely token is the same; one row of `ours` for each of `tops`.

    All tokens beyond theirs count as one, which can only lower the divergence.
    """
    divergence, agreed = [], []
    for (ids, log_p), row in zip(tops, ours, strict=True):
        p, q = np.exp(log_p), np.exp(row[ids])
        rest_p, rest_q = max(1 - p.sum(), 1e-12), max(1 - q.sum(), 1e-12)
        divergence.append((p * np.log(p / q)).sum() + rest_p * np.log(rest_p / rest_q))
        agreed.append(ids[0] == row.argmax())
    return float(np.mean(divergence)), float(np.mean(agreed))


def test_the_same_predictions_on_real_text(smollm2: Model, smollm2_path: Path, prose_ids: Sequence[int]) -> None:
    """Teacher-forced on every fifth position past the heading, on the 1,000 tokens that llama.cpp finds most likely.

    All others hold about 1%. Its 8-bit activations alone cost about 3e-3 and 3.6% against float32.
    Measured: 2.6e-3 to 2.9e-3, 96.7%.
    """
    lengths = range(100, 700, 5)
    ours = log_softmax(logits(smollm2.native(threads=2), prose_ids[: lengths.stop], chunk=256))
    with llamacpp(smollm2_path, context=1024) as peer:
        tops = [peer.top(prose_ids[:n], 1000) for n in lengths]
    divergence, agreement = compare(tops, ours[[n - 1 for n in lengths]])
    assert divergence <= 5e-3 and agreement >= 0.95
    # The comparison itself: one position off is nothing like it.
    divergence, agreement = compare(tops, ours[list(lengths)])
    assert divergence > 1 and agreement < 0.5
