"""Weights held in another format than the file's: nearly the same model, of another size."""

from pathlib import Path

import numpy as np
import pytest

from phaseline import SamplingParams, load
from phaseline.errors import UnsupportedError
from phaseline.program.cost import weight_bytes
from support.tiny import write_llama

SCORED = SamplingParams(max_tokens=1, prompt_logprobs=0)


@pytest.mark.parametrize(("weights", "tolerance"), [("bf16", 0.1), ("q8_0", 0.1)])
def test_the_answer_is_nearly_that_of_the_file(tmp_path: Path, weights: str, tolerance: float) -> None:
    path, prompt = write_llama(tmp_path / "tiny.gguf", format="Q4_1"), list(range(2, 34))
    scores, sizes = [], []
    for held in (None, weights):
        engine = load(path, threads=1, weights=held)
        scored = engine.generate(prompt, SCORED).prompt_logprobs
        scores.append(np.array([each.logprob for each in scored[1:]]))
        sizes.append(weight_bytes(engine.executor.program))
        engine.close()
    assert 0 < np.abs(scores[0] - scores[1]).max() < tolerance, "rounded, but the same model"
    assert sizes[1] / sizes[0] == pytest.approx({"bf16": 3.2, "q8_0": 1.7}[weights], rel=0.03)


def test_the_specification_runs_them_too(tmp_path: Path) -> None:
    path, prompt = write_llama(tmp_path / "tiny.gguf", format="Q4_1"), list(range(2, 34))
    native, reference = (
        [
            each.logprob
            for each in load(path, threads=1, weights="q8_0", numerics=n).generate(prompt, SCORED).prompt_logprobs[1:]
        ]
        for n in ("fast", "reference")
    )
    assert native == pytest.approx(reference, abs=0.02)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="weights cannot be held as 'q2'"):
        load(write_llama(tmp_path / "tiny.gguf"), weights="q2")
