"""Messages and tools as templates expect them, checked before a template sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from phaseline.files.tool_calls import ToolFormat, tool_format
from phaseline.serve.door.json_body import check_size
from phaseline.serve.door.problems import Problem, refused
from phaseline.serve.door.protocol import ChatBody

_TEXTS = {"text": "text", "refusal": "refusal"}  # kinds of parts, and where they have their text


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions that an answer may call, and how the model spells calls. `forced`: it must call one of these."""

    functions: Sequence[Mapping[str, Any]]
    format: ToolFormat
    forced: Sequence[Mapping[str, Any]] = ()


def messages_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, each content a string, each call's arguments an object. Problem names what is at fault."""
    if not messages:
        raise refused("messages", "must have at least one message")
    return [_message(message, f"messages[{n}]") for n, message in enumerate(messages)]


def tools_of(body: ChatBody, template: str | None) -> Tools | None:
    """What `tools` and `tool_choice` amount to; None if no call may be made."""
    choice = body.tool_choice
    if choice is not None and not body.tools and choice not in ("none", "auto"):
        raise refused("tool_choice", "there are no tools to choose from")
    if not body.tools or choice == "none":
        return None
    for n, tool in enumerate(body.tools):
        function = tool.get("function")
        named = isinstance(function, dict) and isinstance(function.get("name"), str) and function["name"]
        if tool.get("type") != "function" or not named:
            raise refused(f"tools[{n}]", 'must be {"type": "function", "function": {"name": ..., ...}}')
    format = tool_format(template)
    if format is None:
        known = ", ".join(format.name.capitalize() for format in ToolFormat)
        raise refused("tools", f"this model's template teaches no format of calls that is known here ({known})")
    if choice in (None, "auto"):
        return Tools(body.tools, format)
    if choice == "required":
        return Tools(body.tools, format, body.tools)
    named = choice.get("function") if isinstance(choice, dict) else None
    forced = [t for t in body.tools if isinstance(named, dict) and t["function"]["name"] == named.get("name")]
    if not forced:
        raise refused(
            "tool_choice", 'must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
        )
    return Tools(body.tools, format, forced[:1])


def _message(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise refused(f"{place}.role", "must be a string")
    if message.get("content") is None and role != "assistant":
        raise refused(f"{place}.content", "is missing: only an assistant's message may have none")
    found = dict(message) | {"content": _text(message.get("content"), f"{place}.content")}
    if found.get("tool_calls") is None:
        found.pop("tool_calls", None)
    else:
        found["tool_calls"] = _calls(found["tool_calls"], f"{place}.tool_calls")
    return found


def _text(content: Any, place: str) -> str:
    """Parts become lines, as vLLM joins them."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise refused(place, "must be a string or a list of parts")
    return "\n".join(_part(part, f"{place}[{n}]") for n, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise refused(place, 'must be an object with a "type"')
    if kind not in _TEXTS:
        raise Problem(
            400, f"{place}: parts of type {kind[:40]!r} are not supported, only text: models here read nothing else",
            param=place, code="unsupported_content",
        )  # fmt: skip
    text = part.get(_TEXTS[kind])
    if not isinstance(text, str):
        raise refused(f"{place}.{_TEXTS[kind]}", "must be a string")
    return text


def _calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """Templates print arguments as JSON themselves, so they get the object that the string holds."""
    if not isinstance(calls, list):
        raise refused(place, "must be a list")
    found = []
    for n, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refused(f"{place}[{n}].function", "must be an object with a name")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            spelt = arguments.encode()
            check_size(spelt, 0)
            try:
                arguments = msgspec.json.decode(spelt)
            except (msgspec.DecodeError, RecursionError):
                raise refused(f"{place}[{n}].function.arguments", "must be JSON") from None
        if not isinstance(arguments, dict):
            raise refused(f"{place}[{n}].function.arguments", "must be a JSON object")
        found.append(call | {"function": function | {"arguments": arguments}})
    return found
