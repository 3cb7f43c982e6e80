"""Our executors against `transformers` in float32 on the same dequantised weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from phaseline import _native
from phaseline.execute.reference import ReferenceExecutor
from phaseline.files.gguf import open_gguf
from support.distributions import compare
from support.models import Model, logits, open_model, relative_error
from support.tiny import write_llama
from support.transformers_llama import transformers_llama, transformers_logits

pytest.importorskip("torch", reason="the reference torch is not installed")
pytest.importorskip("transformers", reason="the reference transformers is not installed")

LENGTHS = (1, 7, 64, 300)
TOKENS = 1000
Logits = NDArray[np.float32]

# Tolerances of the native executor, max |difference| / max |logit|, SmolLM2 (30 layers), as root mean squares.
# Activations: a block of 32 is rounded to steps of max / 16256; with max <= sqrt(32) rms, a product's input is off
# by sqrt(32) / 16256 / sqrt(12) = 1.0e-4 of itself at most. Four such inputs in each layer and one before the head,
# independent, add to sqrt(121) times that: 1.1e-3.
F32_TOLERANCE = 121**0.5 * 32**0.5 / 16256 / 12**0.5
# State in bf16: an element is off by 2^-7 / sqrt(12) * 0.7 = 1.6e-3 of itself. A value passes that on; a key moves
# its score by as much times sqrt(sum q^2 k^2) * scale, about 3 in a trained head. Both, in 30 layers, add to
# sqrt(30 * (1 + 3^2)) * 1.6e-3 = 2.8e-2.
BF16_TOLERANCE = (30 * (1 + 3**2)) ** 0.5 * 2**-7 / 12**0.5 * 0.5**0.5 + F32_TOLERANCE
TOLERANCES = {"f32": F32_TOLERANCE, "bf16": BF16_TOLERANCE}


@pytest.fixture(scope="module")
def expected(smollm2: Model, prose_ids: Sequence[int]) -> Logits:
    """transformers' logits on real text; the model is causal, so that a prefix's logits are the first rows."""
    return transformers_logits(transformers_llama(smollm2), prose_ids[:TOKENS])


@pytest.fixture(scope="module")
def reference(smollm2: Model) -> ReferenceExecutor:
    return smollm2.reference()


@pytest.fixture(scope="module", params=["f32", "bf16"])
def native(smollm2: Model, prose_ids: Sequence[int], request: pytest.FixtureRequest) -> tuple[str, Logits]:
    """Native logits of the same text, and the type of the state."""
    executor = smollm2.native(kv_type=request.param, threads=2)
    return request.param, logits(executor, prose_ids[:TOKENS], chunk=250)


@pytest.mark.parametrize("tokens", LENGTHS)
def test_reference_executor_on_real_text(
    reference: ReferenceExecutor, prose_ids: Sequence[int], expected: Logits, tokens: int
) -> None:
    assert relative_error(logits(reference, prose_ids[:tokens]), expected[:tokens]) <= 1e-4


def test_native_logits_on_real_text(native: tuple[str, Logits], expected: Logits) -> None:
    """Measured: 4.9e-4 with state in f32, 1.6e-2 in bf16."""
    kv_type, got = native
    for tokens in (*LENGTHS, TOKENS):
        assert relative_error(got[:tokens], expected[:tokens]) <= TOLERANCES[kv_type]


def test_native_predictions_on_real_text(
    native: tuple[str, Logits], expected: Logits, prose_ids: Sequence[int]
) -> None:
    """Measured: KL 2.5e-7 (f32) and 8.1e-5 (bf16), top-1 99.8% and 99.4%, perplexity off by 0.002% and 0.11%.

    Log-probabilities differ by sqrt(2 KL) where the difference is small and random, their mean over n tokens by
    1 / sqrt(n) of that: four such standard deviations are allowed.
    """
    kv_type, got = native
    found = compare(expected, got, prose_ids)
    assert found.kl <= {"f32": 1e-6, "bf16": 5e-4}[kv_type]
    assert found.top1 >= 0.99
    assert abs(found.perplexity_ratio - 1) <= 4 * (2 * found.kl / TOKENS) ** 0.5


def test_the_portable_level_on_real_text(smollm2: Model, prose_ids: Sequence[int], expected: Logits) -> None:
    got = logits(smollm2.native(kv_type="f32", threads=2, level="portable"), prose_ids[:32])
    assert relative_error(got, expected[:32]) <= F32_TOLERANCE


TINY: list[dict[str, Any]] = [
    {"layers": 2, "heads": 4, "kv_heads": 2},
    {"layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 32, "tied": True, "rope_theta": 1e6},
    {"layers": 3, "heads": 6, "kv_heads": 2, "width": 48, "ff": 80, "head_dim": 8},
    {"layers": 2, "heads": 4, "kv_heads": 4, "format": "Q8_0"},
]


@pytest.mark.parametrize("seed", range(len(TINY)))
def test_tiny_random_models(tmp_path: Path, seed: int) -> None:
    """The reference executor in float32, and native with plain weights, which keep float32 throughout."""
    with open_gguf(write_llama(tmp_path / "tiny.gguf", seed=seed, **TINY[seed])) as file:
        model = open_model(file)
        ids = np.random.default_rng(seed).integers(0, model.spec.vocab, 150).tolist()
        want = transformers_logits(transformers_llama(model), ids)
        assert relative_error(logits(model.reference(), ids), want) <= 1e-5
        assert relative_error(logits(model.reference(dtype=np.float64), ids), want) <= 1e-5
        tolerance = 1e-5 if "format" not in TINY[seed] else F32_TOLERANCE
        for level in _native.levels():
            assert relative_error(logits(model.native(kv_type="f32", level=level), ids, chunk=40), want) <= tolerance


@pytest.mark.parametrize("mistake", ["query and key rows as the file has them", "another rope base"])
def test_the_comparison_sees_mistakes(tmp_path: Path, mistake: str) -> None:
    extra = {} if "rows" in mistake else {"llama.rope.freq_base": 9000.0}
    right = write_llama(tmp_path / "right.gguf", seed=5)
    wrong = write_llama(tmp_path / "wrong.gguf", seed=5, extra=extra)
    with open_gguf(right) as file, open_gguf(wrong) as other:
        model = open_model(file)
        ids = np.random.default_rng(5).integers(0, model.spec.vocab, 60).tolist()
        want = transformers_logits(transformers_llama(open_model(other), unpermute="rows" not in mistake), ids)
        assert relative_error(logits(model.reference(), ids), want) > 1e-3
