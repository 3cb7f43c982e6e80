"""A tiny model, a server of it that many tests share, and the engine that this server must agree with."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from openai import OpenAI

from phaseline import load
from phaseline.engine.engine import Engine
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
    with serving(tiny, "--chunk", "512") as running:
        yield running


@pytest.fixture(scope="session")
def openai(server: Server) -> Iterator[OpenAI]:
    """OpenAI's own client of that server."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def engine(tiny: Path) -> Iterator[Engine]:
    """The same model in this process."""
    with closing(load(tiny, threads=1)) as engine:
        yield engine
