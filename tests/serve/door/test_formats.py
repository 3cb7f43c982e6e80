"""`response_format` and vLLM's `structured_outputs` over HTTP."""

import json
import re
from typing import Any

import pytest

from support.server import Server

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
TOO_LONG = {"type": "json_schema", "json_schema": {"schema": {"pattern": "x" * 70000}}}


def said(server: Server, **more: Any) -> str:
    body = {"prompt": "Who?", "max_tokens": 400, "seed": 3, **more}
    answer = server.ask("/v1/completions", body)
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"])


@pytest.mark.parametrize(
    "wanted",
    [
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON)}},
    ],
)
def test_a_schema_is_followed(server: Server, wanted: dict[str, Any]) -> None:
    person = json.loads(said(server, **wanted))
    assert set(person) == {"name", "age"} and len(person["name"]) <= 5 and 0 <= person["age"] <= 99


def test_other_structures_are_followed(server: Server) -> None:
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", said(server, structured_outputs={"regex": "[a-c]{3}-[0-9]{2}"}))
    assert said(server, structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert said(server, structured_outputs={"grammar": 'start: "a" | "b"'}) in ("a", "b")


def test_chat_streams_json_too(server: Server) -> None:
    messages = [{"role": "user", "content": "Who?"}]
    body = {"messages": messages, "response_format": FORMAT, "stream": True, "seed": 1, "max_tokens": 400}
    events = server.ask("/v1/chat/completions", body).events
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert set(json.loads(text)) == {"name", "age"}


def test_text_is_no_format(server: Server) -> None:
    body = {"prompt": "Who?", "max_tokens": 5, "temperature": 0}
    plain = server.ask("/v1/completions", body).json["choices"]
    asked = server.ask("/v1/completions", body | {"response_format": {"type": "text"}}).json["choices"]
    assert plain == asked


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
        ({"response_format": TOO_LONG}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, None),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{}", "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, None),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ],
)
def test_what_cannot_be_followed_is_refused(server: Server, wanted: dict[str, Any], param: str | None) -> None:
    for stream in (False, True):
        answer = server.ask("/v1/completions", {"prompt": "x", "stream": stream, **wanted})
        assert answer.status == 400 and answer.json["error"]["param"] == param, answer.body
