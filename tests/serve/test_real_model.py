"""A real model behind the door: its answers mean something."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from support.server import serving


@pytest.fixture(scope="module")
def openai(smollm2_path: Path) -> Iterator[OpenAI]:
    with (
        serving(smollm2_path, "--context", "2048") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client


def test_it_answers_a_question_and_goes_on_with_a_text(openai: OpenAI) -> None:
    (model,) = openai.models.list().data
    asked: Any = {"model": model.id, "temperature": 0, "max_tokens": 24}
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    answer = openai.chat.completions.create(messages=question, **asked)
    assert "Paris" in (answer.choices[0].message.content or "")
    said = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in openai.chat.completions.create(messages=question, stream=True, **asked)
    )
    assert said == answer.choices[0].message.content
    text = openai.completions.create(prompt="The capital of France is", **asked | {"max_tokens": 3, "logprobs": 1})
    assert "Paris" in text.choices[0].text
    assert text.choices[0].logprobs and text.choices[0].logprobs.tokens[0] == " Paris"
