"""Tool calls over HTTP: what a model says becomes calls, whole or streamed; what it must call it calls."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from support.parrot import write_parrot
from support.server import Server, serving

TEMPLATE = (
    "{% if tools %}Call with <tool_call>, of {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}{{ c.function.arguments.city }}!{% endfor %}{% endif %}\n{% endfor %}"
    "{% if enable_thinking %}<think>{% endif %}"
)
SAYS = (
    "Well: ",
    "<tool_call>",
    '\n{"name": "weather", ',
    '"arguments": {"city": "Paris"}}\n',
    "</tool_call>",
    "<tool_call>\n",
    '{"name": "weather", "arguments": {"city": "Rome"}}',
    "\n</tool_call>",
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "parameters": CITY}},
]
ASKED: Any = {"model": "parrot", "temperature": 0, "messages": [{"role": "user", "content": "What is it like?"}]}


@pytest.fixture(scope="module")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that calls the weather twice. Its first mark is a control token, which leaves no trace in plain text."""
    path = tmp_path_factory.mktemp("models") / "parrot.gguf"
    with serving(write_parrot(path, SAYS, control=["<tool_call>", "</tool_call>"], template=TEMPLATE)) as running:
        yield running


@pytest.fixture(scope="module")
def openai(parrot: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{parrot.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_calls_are_taken_out_of_the_text(openai: OpenAI) -> None:
    (choice,) = openai.chat.completions.create(tools=TOOLS, **ASKED).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Well: "
    calls: Any = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert [json.loads(call.function.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert len({call.id for call in calls}) == 2 and all(call.type == "function" for call in calls)


def test_streamed_calls_are_what_the_sdk_puts_together(openai: OpenAI) -> None:
    with openai.chat.completions.stream(tools=TOOLS, n=2, **ASKED) as stream:
        final = stream.get_final_completion()
    for choice in final.choices:
        assert choice.finish_reason == "tool_calls" and choice.message.content == "Well: "
        calls: Any = choice.message.tool_calls
        assert [call.function.name for call in calls] == ["weather", "weather"]
        assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Paris", "Rome"]


def test_a_call_is_streamed_as_soon_as_it_is_complete(openai: OpenAI) -> None:
    deltas = [chunk.choices[0] for chunk in openai.chat.completions.create(tools=TOOLS, stream=True, **ASKED)]
    said = [(d.delta.content, [c.index for c in d.delta.tool_calls or ()], d.finish_reason) for d in deltas]
    assert said == [("Well: ", [], None), (None, [0], None), (None, [1], None), (None, [], "tool_calls")]


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_first_call_counts_where_one_is_asked_for(openai: OpenAI, stream: bool) -> None:
    asked = {"tools": TOOLS, "parallel_tool_calls": False, **ASKED}
    if stream:
        chunks = openai.chat.completions.create(stream=True, **asked)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    else:
        calls = openai.chat.completions.create(**asked).choices[0].message.tool_calls or []  # type: ignore[assignment]
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Paris"]  # type: ignore[union-attr,arg-type]


def test_without_tools_all_is_text(openai: OpenAI) -> None:
    for choice in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (answer,) = openai.chat.completions.create(**choice, **ASKED).choices
        assert answer.finish_reason == "stop" and answer.message.tool_calls is None
        assert (answer.message.content or "").startswith('Well: \n{"name"')  # control tokens say nothing


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "function", "function": {"name": "time"}}, {"time"}), ("required", {"weather", "time"})],
)
def test_what_must_be_called_is(openai: OpenAI, choice: Any, names: set[str]) -> None:
    asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200, **ASKED}
    (answer,) = openai.chat.completions.create(**asked).choices
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls or ()
    assert call.function.name in names and json.loads(call.function.arguments) == {"city": "Paris"}  # type: ignore[union-attr]


def test_templates_see_tools_and_arguments_as_objects(parrot: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [*ASKED["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    ids = parrot.ask("/tokenize", {"messages": messages, "tools": TOOLS}).json["tokens"]
    text = parrot.ask("/detokenize", {"tokens": ids}).json["prompt"]
    assert text == f"Call with <tool_call>, of {json.dumps(TOOLS)}\nuser: What is it like?assistant: Oslo!"
    for arguments in ("{", "[]", '"x"', 5, '{"x": NaN}', '{"x": -Infinity}'):
        call["function"] = {"name": "weather", "arguments": arguments}
        answer = parrot.ask("/v1/chat/completions", {"messages": messages})
        assert answer.status == 400 and "arguments" in answer.json["error"]["param"]


def test_variables_of_the_template_can_be_set(parrot: Server) -> None:
    def prompt_tokens(path: str, **more: Any) -> int:
        answer = parrot.ask(path, {"messages": ASKED["messages"], **more}).json
        return int(answer["usage"]["prompt_tokens"] if "usage" in answer else answer["count"])

    for path in ("/tokenize", "/v1/chat/completions"):
        thinking = prompt_tokens(path, chat_template_kwargs={"enable_thinking": True})
        assert thinking == prompt_tokens(path) + len("<think>")


def test_tools_do_not_go_with_a_format(parrot: Server) -> None:
    body = {**ASKED, "tools": TOOLS, "response_format": {"type": "json_object"}}
    answer = parrot.ask("/v1/chat/completions", body)
    assert answer.status == 400 and answer.json["error"]["param"] == "response_format"
