"""The description, and all that it allows or does not: no answer is a 500, or anything it does not tell of."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.server import Server

CHECKS: Any = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FEW = settings(max_examples=25, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
ENDPOINTS = (
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{name}", "GET"),
    ("/health", "GET"),
    ("/ready", "GET"),
)


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_everything_is_described(api: Any) -> None:
    assert {(result.ok().path, result.ok().method.upper()) for result in api.get_all_operations()} == set(ENDPOINTS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("path", "method"), ENDPOINTS[:4])
def test_whatever_is_sent_is_answered_as_the_description_says(
    api: Any, path: str, method: str, mode: GenerationMode
) -> None:
    @FEW
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if isinstance(case.body, dict):  # answers are short, so that examples may be many
            case.body.pop("max_completion_tokens", None)
            case.body["max_tokens"] = 2
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})],
)
def test_answers_are_as_described(api: Any, path: str, asked: dict[str, Any], stream: bool) -> None:
    body = {**asked, "max_tokens": 2, "stream": stream, "return_token_ids": True, "n": 2}
    assert api[path]["POST"].Case(body=body).call_and_validate(checks=CHECKS, timeout=60).status_code == 200


@pytest.mark.parametrize(("path", "method"), ENDPOINTS[4:])
def test_what_is_told_without_a_body_is_as_described(api: Any, path: str, method: str) -> None:
    @FEW
    @given(case=api[path][method].as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()
