"""Whatever is wrong with a request is said in OpenAI's shape, with the status that fits; and the server goes on."""

import json
from typing import Any

import pytest

from phaseline.serve.door.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from support.server import Answer, Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 1},
    CHAT: {"messages": [HELLO], "max_tokens": 1},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [50, 51]},
}


def refused(answer: Answer, status: int, param: str | None = None, code: str | None = None) -> str:
    """The message of an error that is as it should be."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param and error["code"] == code and error["message"] and error["type"]
    return str(error["message"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"prompt": "x"} x', "not JSON"),
        (b'{"prompt": "x", "temperature": NaN}', "not JSON"),
        (b'{"prompt": "x", "unknown": Infinity}', "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"prompt": "x", "unknown": "\xc3("}', "not UTF-8"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b'{"prompt": "x", "unknown": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested too deeply"),
        (b'{"prompt": ' + b'{"a":' * 10_000, "prompt"),
        (b"[" * 5_000_000, "5000000 lists and objects"),
    ],
)
def test_what_is_not_json_is_refused(server: Server, body: bytes, message: str) -> None:
    answer = server.ask(COMPLETIONS, body)
    assert answer.status == 400 and message in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", 5]}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [320]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 5000}, "prompt"),
        (COMPLETIONS, {"n": 0}, "n"),
        (COMPLETIONS, {"n": 10**9}, "n"),
        (COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
        (COMPLETIONS, {"min_tokens": 5}, "min_tokens"),
        (COMPLETIONS, {"temperature": -0.1}, "temperature"),
        (COMPLETIONS, {"temperature": 1e300}, "temperature"),
        (COMPLETIONS, {"top_p": 0}, "top_p"),
        (COMPLETIONS, {"top_k": -2}, "top_k"),
        (COMPLETIONS, {"min_p": 2}, "min_p"),
        (COMPLETIONS, {"repetition_penalty": 0}, "repetition_penalty"),
        (COMPLETIONS, {"presence_penalty": 3}, "presence_penalty"),
        (COMPLETIONS, {"frequency_penalty": -3}, "frequency_penalty"),
        (COMPLETIONS, {"seed": 2**64}, "seed"),
        (COMPLETIONS, {"seed": 10**30}, "seed"),
        (COMPLETIONS, {"stop": ""}, "stop"),
        (COMPLETIONS, {"stop": ["a"] * 17}, "stop"),
        (COMPLETIONS, {"stop": ["stop"] * 5000}, "stop"),
        (COMPLETIONS, {"stop_token_ids": [320]}, "stop_token_ids"),
        (COMPLETIONS, {"logit_bias": {"x": 1}}, "logit_bias"),
        (COMPLETIONS, {"logit_bias": {"320": 1}}, "logit_bias"),
        (COMPLETIONS, {"logit_bias": {"3": 101}}, "logit_bias"),
        (COMPLETIONS, {"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"suffix": "end"}, "suffix"),
        (COMPLETIONS, {"best_of": 3}, "best_of"),
        (COMPLETIONS, {"use_beam_search": True}, "use_beam_search"),
        (COMPLETIONS, {"priority": 2**31}, "priority"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user" * 1000, "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
        (CHAT, {"messages": [HELLO, {"role": "user"}]}, "messages[1].content"),
        (CHAT, {"messages": [HELLO, {"role": "tool", "content": None}]}, "messages[1].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (CHAT, {"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]"),
        (CHAT, {"messages": [HELLO | {"tool_calls": "x"}]}, "messages[0].tool_calls"),
        (CHAT, {"messages": [HELLO | {"tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        *[
            (path, {name: ["yes", "no"]}, name)
            for path in (COMPLETIONS, CHAT)
            for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        ],
        *[(CHAT, {name: 5}, name) for name in ("grammar", "json_schema", "n_predict")],
        (CHAT, {"tool_choice": "required"}, "tool_choice"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0]"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"functions": []}, "functions"),
        (CHAT, {"chat_template": "x"}, "chat_template"),
        (CHAT, {"continue_final_message": True}, "continue_final_message"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("/tokenize", {"content": "x"}, "prompt"),
        ("/detokenize", {"tokens": [320]}, "tokens"),
        ("/detokenize", {"tokens": [10**40]}, "tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_the_fields_name(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    message = refused(server.ask(path, GOOD[path] | body), 400, param)
    assert param.partition("[")[0] in message and len(message) < 400


@pytest.mark.parametrize(
    ("path", "type"),
    [(COMPLETIONS, CompletionBody), (CHAT, ChatBody), ("/tokenize", TokenizeBody), ("/detokenize", DetokenizeBody)],
)
def test_wrong_types_in_every_field_are_refused(server: Server, path: str, type: Any) -> None:
    wrong = (5.5, "text", True, [], {}, [{}], [None], {"a": [1]}, -1, 10**40)
    for field in type.__struct_fields__:
        answers = [server.ask(path, GOOD[path] | {field: value}) for value in wrong]
        assert {answer.status for answer in answers} <= {200, 400, 404}, field
        assert sum(answer.status != 200 for answer in answers) >= 5, field
        for answer in answers:
            assert answer.status == 200 or answer.json["error"]["message"]


@pytest.mark.parametrize("path", GOOD)
def test_null_is_absent_and_unknown_fields_are_ignored(server: Server, path: str) -> None:
    types: dict[str, Any] = {
        COMPLETIONS: CompletionBody, CHAT: ChatBody, "/tokenize": TokenizeBody, "/detokenize": DetokenizeBody,
    }  # fmt: skip
    nothing = dict.fromkeys(types[path].__struct_fields__)
    assert server.ask(path, nothing | {"user": "x", "metadata": {"a": [1]}} | GOOD[path]).status == 200


@pytest.mark.parametrize("path", GOOD)
def test_an_unknown_model_is_not_found(server: Server, path: str) -> None:
    told = refused(server.ask(path, GOOD[path] | {"model": "gpt-4"}), 404, "model", "model_not_found")
    assert "`gpt-4`" in told and "`tiny`" in told
    assert server.ask(path, GOOD[path] | {"model": "tiny"}).status == 200


def test_parts_that_are_no_text_are_refused_by_their_kind(server: Server) -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    ]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert "image_url" in refused(server.ask(CHAT, body), 400, "messages[0].content[1]", "unsupported_content")


def test_prompts_beyond_the_context_are_refused_in_time(server: Server) -> None:
    for prompt in ("x" * 10_000_000, "\U0001f600 " * 1_000_000, [5] * 40_000, ["ok", "y" * 1_000_000]):
        message = refused(server.ask(COMPLETIONS, {"prompt": prompt}), 400, code="context_length_exceeded")
        assert "32768" in message
    long = {"messages": [{"role": "user", "content": "z" * 1_000_000}]}
    refused(server.ask(CHAT, long), 400, code="context_length_exceeded")
    refused(server.ask("/tokenize", {"content": "x" * 10_000_000}), 400, code="context_length_exceeded")


def test_what_would_take_long_to_decode_is_not(server: Server) -> None:
    for unknown in ({str(n): 0 for n in range(120_000)}, [[]] * 100_000, [{}] * 100_000, [1.5] * 400_000):
        refused(server.ask(COMPLETIONS, GOOD[COMPLETIONS] | {"unknown": unknown}), 400, code="body_too_complex")
    refused(server.ask("/detokenize", {"tokens": [50] * 40_000}), 400, code="context_length_exceeded")
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": [0] * 400_000})}}]
    spoken = {"messages": [HELLO, {"role": "assistant", "tool_calls": calls}, HELLO]}
    refused(server.ask(CHAT, spoken), 400, code="body_too_complex")


def test_long_lists_of_tokens_are_looked_at(server: Server) -> None:
    prompts = [[320], *([50 + n % 200] * 8000 for n in range(31))]
    assert "320" in refused(server.ask(COMPLETIONS, {"prompt": prompts}), 400, "prompt")
    biases = {str(n): -100 for n in range(86_000)}
    assert "320" in refused(server.ask(COMPLETIONS, GOOD[COMPLETIONS] | {"logit_bias": biases}), 400, "logit_bias")


def test_what_is_told_to_many_prompts_is_bounded(server: Server) -> None:
    body = {"stop_token_ids": [300] * 1000, "max_tokens": 1}
    assert server.ask(COMPLETIONS, body | {"prompt": ["a"] * 131}).status == 200
    message = refused(server.ask(COMPLETIONS, body | {"prompt": ["a"] * 132}), 400, "stop_token_ids")
    assert "132000 tokens for 132 prompts" in message


def test_a_stream_that_cannot_begin_has_the_status_of_its_error(server: Server) -> None:
    refused(server.ask(COMPLETIONS, {"prompt": "x", "stream": True, "n": 100}), 400, code="context_length_exceeded")


def test_paths_and_methods_that_are_not_there(server: Server) -> None:
    refused(server.ask("/nothing"), 404, code="not_found")
    refused(server.ask("/v1/completions/"), 404, code="not_found")
    answer = server.ask(COMPLETIONS)
    refused(answer, 405, code="method_not_allowed")
    assert answer.headers["allow"] == "POST"
    refused(server.ask("/v1/models", {}), 405, code="method_not_allowed")
    refused(server.ask("/v1/models/other"), 404, "model", "model_not_found")
    refused(server.ask("/../../etc/passwd"), 404, code="not_found")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data; boundary=x"]
)
def test_what_a_foreign_web_page_could_send_is_refused(server: Server, kind: str) -> None:
    """Browsers send these anywhere without asking; JSON they ask for first, and are not allowed to."""
    answer = server.ask(COMPLETIONS, GOOD[COMPLETIONS], headers={"Content-Type": kind})
    refused(answer, 415, code="unsupported_media_type")
    asked = server.ask(
        COMPLETIONS, method="OPTIONS", headers={"Origin": "http://x", "Access-Control-Request-Method": "POST"}
    )
    assert not any(name.startswith("access-control") for name in asked.headers)
