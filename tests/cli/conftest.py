"""The real command in a process of its own, and tiny models for it to run."""

import subprocess
from collections.abc import Iterator

import pytest

from support.command import COMMAND, Run, Start
from support.tiny import write_llama

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a chat template and room for an answer that takes seconds."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return str(write_llama(path, context=1 << 17, extra={"tokenizer.chat_template": TEMPLATE}))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without a chat template."""
    return str(write_llama(tmp_path_factory.mktemp("models") / "plain.gguf"))


@pytest.fixture(scope="session")
def phaseline() -> Run:
    """Run the command to its end."""

    def run(*args: str, input: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*COMMAND, *args], input=input, capture_output=True, encoding="utf-8", timeout=60)

    return run


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the command; whatever is left of it is killed when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def popen(*args: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*COMMAND, *args], stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8"))
        return started[-1]

    yield popen
    for process in started:
        process.kill()
        process.communicate()
