"""A request's answer is the same alone and in a crowd, whatever model: the same tokens, text and log-probabilities.

Around it are requests of every kind, prompts that begin alike, clients who leave, and so few pages that sequences lose
theirs and start again.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phaseline.engine.memory import fit
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from support.crowd import Case, leave
from support.kimi import write_kimi
from support.server import Server, eventually, serving
from support.tiny import CHAT_TEMPLATE, write_decoder, write_llama

CHUNK, SEATS = 48, 12
CHAT: dict[str, Any] = {"tokenizer.chat_template": CHAT_TEMPLATE}
WINDOWED: dict[str, Any] = {
    "head_norms": True,
    "post_norms": True,
    "extra": CHAT | {"gemma3.attention.sliding_window": 40},
}
MODELS: dict[str, tuple[Callable[..., Path], int]] = {  # and their context: prefixes are longer than a window is
    "dense": (partial(write_llama, format="Q8_0", extra=CHAT), 640),
    "windowed": (partial(write_decoder, arch="gemma3", layers=7, **WINDOWED), 640),
    "recurrent": (partial(write_kimi, recurrent=(True, False, True), dense=3, extra=CHAT), 1280),
}


def memory_for(model: Path, context: int, contexts: float) -> int:
    """Bytes that leave room for so many sequences of the whole context."""
    with open_gguf(model) as file:
        program = model_program(file)[1]
    one = fit(program, context=context, memory=1 << 40, max_running=1, chunk=CHUNK)
    return one.weights + (256 << 20) + int(contexts * one.stream(context))


@pytest.fixture(scope="module", params=MODELS)
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    """A server whose requests have prompts and answers of about so many tokens, the former at most three times that."""
    write, context = MODELS[request.param]
    model = write(tmp_path_factory.mktemp("models") / f"{request.param}.gguf", context=context)
    options = {"memory": memory_for(model, context, 3), "chunk": CHUNK, "context": context, "max-running": SEATS}
    with serving(model, "--check-pages", *(f"--{name}={value}" for name, value in options.items())) as running:
        yield running, context // 5


@pytest.mark.parametrize("seed", range(2))
def test_a_request_is_answered_the_same_alone_and_in_a_crowd(crowded: tuple[Server, int], seed: int) -> None:
    server, size = crowded
    rng = random.Random(seed)
    cases = [Case.drawn(rng, prompt=4 * size, tokens=size) for _ in range(32)]
    alone = [case.ask(server, cache_salt=f"{seed} {number}") for number, case in enumerate(cases)]
    before = {name: server.metric(name) for name in ("preemptions_total", "cached_prompt_tokens_total")}
    with ThreadPoolExecutor(48) as threads:
        leaving = [
            threads.submit(leave, server, Case.drawn(rng, prompt=4 * size, tokens=size), rng.choice([0, 1, 700]))
            for _ in range(16)
        ]
        answers = [threads.submit(case.ask, server) for case in cases]
        for case, answer, expected in zip(cases, answers, alone, strict=True):
            assert answer.result() == expected, case
        for left in leaving:
            left.result()
    eventually(lambda: server.idle)
    assert all(server.metric(name) > count for name, count in before.items())
    assert server.metric("pages_used") == 0
