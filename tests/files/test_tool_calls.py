"""Tool calls: each format, cut anywhere, and whatever else a model may write."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phaseline.files import tool_calls
from phaseline.files.text_stream import SpeltTokens, TextStream
from phaseline.files.tokenizer import Tokenizer
from phaseline.files.tool_calls import ToolCall, ToolCallStream, ToolFormat, mark_ids, tool_format
from support.vocab_cases import tiny_metadata

HERMES, LLAMA3, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA3, ToolFormat.MISTRAL
F = ToolCall("f", '{"x": 1}')
G = ToolCall("g.h-1", '{"é": "</a>;{"}')
ASK_F, ASK_G = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g.h-1", "parameters": {"é": "</a>;{"}}'


def read(format: ToolFormat | None, pieces: Sequence[str]) -> tuple[str, list[ToolCall]]:
    stream = ToolCallStream(format)
    parts = [*map(stream.push, pieces), stream.finish()]
    return "".join(text for text, _ in parts), [call for _, calls in parts for call in calls]


EXAMPLES = [
    (HERMES, f"<tool_call>\n{ASK_F}\n</tool_call>", "", [F]),
    (HERMES, f"So: <tool_call>{ASK_F}</tool_call>\n<tool_call>{ASK_G}</tool_call>.", "So: \n.", [F, G]),
    (HERMES, f"<tool_call>{ASK_F}", "", [F]),
    (HERMES, f"<tool_call>{{}}</tool_call><tool_call>{ASK_F}</tool_call>", "<tool_call>{}</tool_call>", [F]),
    (HERMES, ASK_F, ASK_F, []),
    (LLAMA3, ASK_G, "", [G]),
    (LLAMA3, f"\n {ASK_F}; {ASK_G}", "", [F, G]),
    (LLAMA3, f"<|python_tag|>{ASK_F}", "", [F]),
    (LLAMA3, f"Let me see.<|python_tag|>{ASK_F}", "Let me see.", [F]),
    (LLAMA3, '{"type": "function", "function": ' + ASK_F + "}", "", [F]),
    (LLAMA3, f"It is {ASK_F}", f"It is {ASK_F}", []),
    (LLAMA3, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (MISTRAL, f"[TOOL_CALLS] [{ASK_F}, {ASK_G}]", "", [F, G]),
    (MISTRAL, 'Well[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g.h-1{"é": "</a>;{"}', "Well", [F, G]),
    (MISTRAL, "[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", []),
    (MISTRAL, "[TOOL_CALLS][", "[TOOL_CALLS][", []),
    (None, f"<tool_call>{ASK_F}</tool_call>", f"<tool_call>{ASK_F}</tool_call>", []),
]


@pytest.mark.parametrize(("format", "whole", "text", "calls"), EXAMPLES)
def test_each_format(format: ToolFormat | None, whole: str, text: str, calls: list[ToolCall]) -> None:
    assert read(format, [whole]) == (text, calls)
    assert read(format, list(whole)) == (text, calls)


PARTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "<tool_c", '{"name', ASK_F, ASK_G),
    *("[", "]", "{", "}", "<", '"', "f", " ", ";", "NaN", "é"),
]
PIECES = st.lists(st.sampled_from(PARTS) | st.text(max_size=3))
FORMATS = st.sampled_from([*ToolFormat, None])


@given(FORMATS, PIECES, st.data())
@example(HERMES, ["<tool_call>", "{", "</tool_call>"], None)
def test_where_the_text_is_cut_makes_no_difference(format: ToolFormat, pieces: list[str], data: st.DataObject) -> None:
    whole = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole))))) if data else []
    cut = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert read(format, cut) == read(format, [whole]) == read(format, list(whole))


@given(FORMATS, PIECES)
def test_text_without_calls_is_unchanged(format: ToolFormat, pieces: list[str]) -> None:
    text, calls = read(format, pieces)
    assert calls or text == "".join(pieces)
    for call in calls:
        assert isinstance(json.loads(call.arguments), dict)


@given(st.sampled_from(ToolFormat), st.text("<to[TO|é ", max_size=30))
def test_only_what_may_become_a_mark_is_held_back(format: ToolFormat, text: str) -> None:
    stream, given_out = ToolCallStream(format), ""
    for count, letter in enumerate(text, 1):
        given_out += stream.push(letter)[0]
        held = text[len(given_out) : count]
        assert text.startswith(given_out)
        assert format.value[0].startswith(held) or not held.strip()


@pytest.mark.parametrize("format", ToolFormat)
def test_what_never_ends_is_text_in_the_end(format: ToolFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "MAX_HELD", 1000)
    pieces = [format.value[0], *['{"a":'] * 1000]
    stream = ToolCallStream(format)
    given_out = "".join(stream.push(piece)[0] for piece in pieces)
    assert given_out == "".join(pieces)
    assert stream.finish() == ("", [])


@pytest.mark.parametrize(
    ("format", "pieces", "calls"),
    [
        (LLAMA3, [" "] * 300_000, 0),
        (LLAMA3, ["{", *[" "] * 300_000], 0),
        (HERMES, ["<tool_call>", ASK_F * 20_000, "</tool_call>"], 20_000),
        (HERMES, ["<tool_call>", ASK_F, " " * 900_000, "</tool_call>"], 1),
        (MISTRAL, ["[TOOL_CALLS]f", " " * 900_000], 0),
    ],
)
def test_long_texts_take_time_in_proportion(format: ToolFormat, pieces: list[str], calls: int) -> None:
    """Minutes otherwise."""
    text, found = read(format, pieces)
    assert len(found) == calls and text == ("" if calls else "".join(pieces))


@given(st.integers(0, 200), st.integers(0, 200), st.data())
def test_much_white_space_is_text_wherever_it_is_cut(before: int, within: int, data: st.DataObject) -> None:
    whole = " " * before + "{" + " " * within + ASK_F[1:]
    cut = data.draw(st.integers(0, len(whole)))
    alike = ("", [F]) if before <= 64 and within <= 64 else (whole, [])
    assert read(LLAMA3, [whole]) == read(LLAMA3, list(whole)) == read(LLAMA3, [whole[:cut], whole[cut:]]) == alike


@pytest.mark.parametrize("format", ToolFormat)
def test_deep_json_is_text(format: ToolFormat) -> None:
    whole = format.value[0] + '{"name": "f", "arguments": ' + "[" * 100_000
    assert read(format, [whole]) == (whole, [])


@pytest.mark.parametrize(
    "body",
    [
        *(ASK_F.replace("1", x) for x in ("NaN", "1e999", '"\\ud800"')),  # no JSON, or no text
        '{"name": "", "arguments": {}}',
        *('{"name": "\\ud800"}', '{"name": 1}', "[]", ""),
    ],
)
def test_what_is_no_call_is_text(body: str) -> None:
    whole = f"<tool_call>{body}</tool_call>"
    assert read(HERMES, [whole]) == (whole, [])


def test_arguments_may_be_missing_or_text() -> None:
    bodies = ['{"name": "f"}', '{"name": "f", "arguments": "{\\"x\\": 1}"}']
    whole = "".join(f"<tool_call>{body}</tool_call>" for body in bodies)
    assert read(HERMES, [whole]) == ("", [ToolCall("f", "{}"), F])


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("... <tool_call>\n{{ call | tojson }}\n</tool_call>", HERMES),
        ("{{ '[TOOL_CALLS] [' }}", MISTRAL),
        ("{{- '<|python_tag|>' }}", LLAMA3),
        ('Respond in the format {"name": function name, "parameters": dictionary of argument name}', LLAMA3),
        ("<tool_call>\n<function=name>", None),
        ("{{ messages }}", None),
        (None, None),
    ],
)
def test_the_template_tells_the_format(template: str | None, format: ToolFormat | None) -> None:
    assert tool_format(template) is format


def test_a_mark_that_is_a_control_token_is_seen() -> None:
    keys = {"token_type": [*[1] * 256, 3, 3], "bos_token_id": None, "eos_token_id": 256, "merges": []}
    bytes_of = tiny_metadata()["tokenizer.ggml.tokens"][:256]
    tokenizer = Tokenizer.from_metadata(tiny_metadata(tokens=[*bytes_of, "</s>", "[TOOL_CALLS]"], **keys))
    stream = TextStream(SpeltTokens(tokenizer, mark_ids(tokenizer, MISTRAL)))
    text = "".join(map(stream.push, tokenizer.encode(f"[TOOL_CALLS][{ASK_F}]</s>")))
    assert read(MISTRAL, [text]) == ("", [F])
