"""Models opened once for all tests of the executors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from phaseline.files.gguf import open_gguf
from phaseline.files.tokenizer import Tokenizer
from support.kimi import write_kimi
from support.models import Model, open_model
from support.tiny import write_llama


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Iterator[Model]:
    """SmolLM2-135M-Instruct Q4_1."""
    with open_gguf(smollm2_path) as file:
        yield open_model(file)


@pytest.fixture(scope="session")
def prose_ids(smollm2: Model, prose: str) -> list[int]:
    """The prose as SmolLM2 reads it."""
    return Tokenizer.from_metadata(smollm2.file.metadata).encode(prose)


@pytest.fixture(scope="session", params=["F32", "mixed", "recurrent"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A few layers of random weights, in float32 or in several formats at once; or layers that carry a state."""
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    if request.param == "F32":
        write_llama(path, layers=3, context=1024, seed=1)
    elif request.param == "recurrent":
        write_kimi(path, format="Q8_0", recurrent=(True, False, True), dim=32, context=1024, seed=3)
    else:
        formats = {"attn_q": "Q6_K", "attn_v": "F16", "ffn": "Q4_1", "output": "Q5_K", "token_embd": "Q8_0"}
        write_llama(path, format="Q4_K", formats=formats, width=256, ff=256, context=1024, heads=8, kv_heads=2, seed=2)
    with open_gguf(path) as file:
        yield open_model(file)
