"""A tiny model, and a server of it that many tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import Server, serving
from support.tiny import CHAT_TEMPLATE, write_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template and room for an answer that takes seconds."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_llama(path, context=1 << 15, extra={"tokenizer.chat_template": CHAT_TEMPLATE})


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Server]:
    """A server that is ready. Tests leave it as they found it: no request in flight."""
    with serving(tiny) as running:
        yield running
