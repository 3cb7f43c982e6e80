"""Gemma 3 on its real weights, where the tester has fetched them: their terms ask for everyone's own choice.

Set PHASELINE_GEMMA3_270M to the path of a gemma-3-270m .gguf file.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from phaseline.files.gguf import open_gguf
from phaseline.files.tokenizer import Tokenizer
from support.distributions import compare
from support.llamacpp import llamacpp
from support.models import Model, logits, open_model

_PATH = os.environ.get("PHASELINE_GEMMA3_270M")
pytestmark = pytest.mark.skipif(not _PATH, reason="PHASELINE_GEMMA3_270M names no file")

ROWS = 800  # more than the window of 512


@pytest.fixture(scope="module")
def path() -> Path:
    return Path(str(_PATH))


@pytest.fixture(scope="module")
def gemma(path: Path) -> Iterator[Model]:
    with open_gguf(path) as file:
        yield open_model(file)


@pytest.fixture(scope="module")
def ids(gemma: Model, prose: str) -> list[int]:
    return Tokenizer.from_metadata(gemma.file.metadata).encode(prose)[:ROWS]


def test_the_text_is_cut_as_llamacpp_cuts_it(gemma: Model, path: Path, prose: str) -> None:
    tokenizer = Tokenizer.from_metadata(gemma.file.metadata)
    text = prose[:3000] + " <start_of_turn>user\n naïve  日本 🙂\t\n\n"
    with llamacpp(path, context=512) as peer:
        assert tokenizer.encode(text, bos=True) == peer.tokenize(text, bos=True)[0]


def test_real_text_past_the_window(gemma: Model, path: Path, ids: list[int]) -> None:
    """Against the float32 reference in every row, chunks cut at odd places; against llama.cpp in every tenth row."""
    ours = logits(gemma.native(threads=2), ids, chunk=173)
    against = compare(logits(gemma.reference(), ids, chunk=400), ours, ids)
    assert against.kl <= 5e-4 and against.top1 >= 0.985 and abs(against.perplexity_ratio - 1) < 2e-3
    lengths = range(100, ROWS, 25)
    with llamacpp(path, context=1024) as peer:
        tops = [peer.top(ids[:n], 1)[0][0] for n in lengths]
    agreed = np.mean([top == ours[n - 1].argmax() for top, n in zip(tops, lengths, strict=True)])
    off = np.mean([top == ours[n].argmax() for top, n in zip(tops, lengths, strict=True)])
    assert agreed >= 0.9 > 0.5 > off  # its 8-bit activations change a choice now and then; another row is another text
