"""What a text must be: response formats, vLLM's structured outputs, and tool calls that are asked for."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phaseline.engine.types import Grammar
from phaseline.files.tokenizer import Tokenizer
from phaseline.files.tool_calls import ToolFormat
from phaseline.serve.door.conversation import Tools
from phaseline.serve.door.problems import refused
from phaseline.serve.door.protocol import Generation, ResponseFormat, StructuredOutputs

_PLAIN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # JSON as models write calls

_ENOUGH = 1 << 17  # characters: twice as many as the engine takes of any grammar


def grammar_of(body: Generation) -> Grammar | None:
    """What the body wants of its text; None if it may be any."""
    found = [
        grammar
        for grammar in (_format(body.response_format), _structured(body.structured_outputs))
        if grammar is not None
    ]
    if len(found) > 1:
        raise refused("structured_outputs", "can't go with response_format")
    return found[0] if found else None


def calls(tools: Tools, marks: Sequence[int], tokenizer: Tokenizer, *, several: bool) -> Grammar | None:
    """One call or `several` of the functions that must be called, as the model spells them; None if none must.

    `marks`: tokens that are a format's mark as a whole. Those that spell nothing a grammar knows by their ids alone.
    """
    if not tools.forced:
        return None
    silent = {tokenizer.token_text(id): id for id in marks if not tokenizer.token_bytes(id)}

    def mark(text: str) -> str:
        return f"<[{silent[text]}]>" if text in silent else json.dumps(text)

    begin, end = tools.format.value
    key = "parameters" if tools.format is ToolFormat.LLAMA3 else "arguments"
    more = {"type": "object", "x-guidance": _PLAIN, "anyOf": [_call(tool["function"], key) for tool in tools.forced]}
    match tools.format:
        case ToolFormat.HERMES:
            start = f'({mark(begin)} "\\n" call "\\n" {mark(end)} "\\n"?)' + ("+" if several else "")
        case ToolFormat.MISTRAL:
            start = f'{mark(begin)} "[" call ' + ('(", " call)* ' if several else "") + '"]"'
        case ToolFormat.LLAMA3:
            start = "call"
    return Grammar("lark", f"start: {start}\ncall: %json {_spelt(more)}\n")


def _call(function: Mapping[str, Any], key: str) -> dict[str, Any]:
    properties = {"name": {"const": function["name"]}, key: function.get("parameters") or {"type": "object"}}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _spelt(value: Any) -> str:
    """As JSON; no more of it than shows that it is too long."""
    parts, size = list[str](), 0
    for part in json.JSONEncoder().iterencode(value):
        parts.append(part)
        size += len(part)
        if size > _ENOUGH:
            break
    return "".join(parts)


def _format(format: ResponseFormat | None) -> Grammar | None:
    match format:
        case None | ResponseFormat("text"):
            return None
        case ResponseFormat("json_object", schema=None):
            return Grammar("json_object")
        case ResponseFormat("json_object", schema=schema) | ResponseFormat("json_schema", {"schema": dict() as schema}):
            return Grammar("json_schema", _spelt(schema))
        case ResponseFormat("json_schema"):
            raise refused("response_format.json_schema", 'must be {"name": ..., "schema": {...}}')
    raise refused("response_format.type", f"must be text, json_object or json_schema, not {format.type[:40]!r}")


def _structured(outputs: StructuredOutputs | None) -> Grammar | None:
    if outputs is None:
        return None
    found = [
        Grammar(kind, text if isinstance(text, str) else _spelt(text))  # type: ignore[arg-type]
        for kind, text in (
            ("json_schema", outputs.json),
            ("regex", outputs.regex),
            ("choice", outputs.choice),
            ("lark", outputs.grammar),
            ("json_object", "" if outputs.json_object else None),
        )
        if text is not None
    ]
    if len(found) != 1:
        raise refused("structured_outputs", "must have one of json, regex, choice, grammar and json_object")
    return found[0]
