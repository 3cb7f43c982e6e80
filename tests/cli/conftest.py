"""The real command in a process of its own, and tiny models for it to run."""

import subprocess
from collections.abc import Iterator

import pytest

from support.command import COMMAND, ENVIRONMENT, Run, Start, run
from support.tiny import CHAT_TEMPLATE, write_llama


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a chat template and room for an answer that takes seconds."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return str(write_llama(path, context=1 << 17, extra={"tokenizer.chat_template": CHAT_TEMPLATE}))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without a chat template."""
    return str(write_llama(tmp_path_factory.mktemp("models") / "plain.gguf"))


@pytest.fixture(scope="session")
def phaseline() -> Run:
    """Run the command to its end; `options` go to `subprocess.run`."""
    return run


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the command; whatever is left of it is killed when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def popen(*args: str) -> "subprocess.Popen[str]":
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen([*COMMAND, *args], env=ENVIRONMENT, encoding="utf-8", **pipes))
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.communicate()
