"""Tool calls in a model's own format, taken out of its text as it comes.

Three formats are known, and told from the chat template that teaches them. What turns out not to be a call, because
its JSON is malformed or never ends, is text like any other, unchanged.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from phaseline.files.tokenizer import Tokenizer

MAX_HELD = 1 << 20  # characters of what may become calls; beyond, it is text
_NAMED = re.compile(r'\s{0,64}\{\s{0,64}"(?:name|type)"')  # how a call without a mark begins
_BEGUN = re.compile(r'\s{0,64}(?:\{\s{0,64}(?:"(?:n(?:am?)?|t(?:yp?)?|name|type)?)?)?')  # what may still become that
_ANOTHER = re.compile(r"[ \t\r\n;]*+(?=.)")
_ARGUMENTS = re.compile(r"\s*([\w.-]+)(?:\s*\[ARGS\])?\s*(?=\{)")


@dataclass(frozen=True)
class ToolCall:
    """`arguments`: a JSON object, as text."""

    name: str
    arguments: str


class ToolFormat(Enum):
    """Value: the mark before calls, the mark after them ("" if they go on to the end)."""

    HERMES = ("<tool_call>", "</tool_call>")  # {"name": ..., "arguments": {...}}, also Qwen's
    LLAMA3 = ("<|python_tag|>", "")  # {"name": ..., "parameters": {...}}; more; or all this without a mark
    MISTRAL = ("[TOOL_CALLS]", "")  # [{"name": ..., "arguments": {...}}, ...], or name[ARGS]{...} after each mark


def tool_format(template: str | None) -> ToolFormat | None:
    """The format that a chat template teaches; None if it is none of those known here."""
    if template is None or "<function=" in template:  # calls as XML
        return None
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL
    if "<tool_call>" in template:
        return ToolFormat.HERMES
    return ToolFormat.LLAMA3 if "<|python_tag|>" in template or '"parameters": dictionary' in template else None


def mark_ids(tokenizer: Tokenizer, format: ToolFormat) -> list[int]:
    """The tokens that are a mark of the format as a whole. Where they are control tokens a text must spell them out,
    or its calls can't be found. Looks at the whole vocabulary.
    """
    marks = [mark for mark in format.value if mark]
    return [id for id in range(tokenizer.vocab_size) if tokenizer.token_text(id) in marks]


class ToolCallStream:
    """Splits a growing text into text and calls. Only what may still become a call is held back."""

    def __init__(self, format: ToolFormat | None) -> None:
        """Without a format all is text."""
        self._format = format
        self._mark, self._end = format.value if format else ("", "")
        self._held: list[str] = []  # after a mark: it and what followed; before one: what could become it
        self._size, self._inside, self._over = 0, False, False
        self._fresh = format is ToolFormat.LLAMA3  # nothing but a little white space so far

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """What is certain once `text` has come: further text, and calls that are complete."""
        if self._format is None or self._over:
            return text, []
        given, calls = "", list[ToolCall]()
        while text:
            more, found, text = self._within(text) if self._inside else self._before(text)
            given += more
            calls += found
        return given, calls

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The rest, now that no text follows."""
        held, self._held, self._over = "".join(self._held), [], True
        calls = self._calls(held) if self._inside else []
        return ("", calls) if calls else (held, [])

    def _before(self, text: str) -> tuple[str, list[ToolCall], str]:
        """No mark so far: (text, calls, what is yet to be read)."""
        text = "".join(self._held) + text
        self._held = []
        at = text.find(self._mark)
        if self._fresh and at != 0:
            if _NAMED.match(text):
                return "", [], self._enter(text, 0)
            if _BEGUN.fullmatch(text):
                self._held = [text]
                return "", [], ""
            self._fresh = False
        if at >= 0:
            return text[:at], [], self._enter(text[at:], len(self._mark))
        first = max(0, len(text) - len(self._mark) + 1)
        start = next(n for n in range(first, len(text) + 1) if self._mark.startswith(text[n:]))
        self._held = [text[start:]]
        return text[:start], [], ""

    def _enter(self, text: str, marked: int) -> str:
        """Begin to hold; what follows the first `marked` characters is yet to be read."""
        self._inside, self._held, self._size = True, [text[:marked]], marked
        return text[marked:]

    def _within(self, text: str) -> tuple[str, list[ToolCall], str]:
        """After a mark."""
        overlap = "".join(self._held[-len(self._end) :])[-len(self._end) + 1 :] if self._end else ""
        at = (overlap + text).find(self._end) if self._end else -1
        taken = len(text) if at < 0 else at + len(self._end) - len(overlap)
        self._held.append(text[:taken])
        self._size += taken
        if at < 0 and self._size <= MAX_HELD:
            return "", [], ""
        held = "".join(self._held)
        calls = self._calls(held) if at >= 0 else []
        self._held, self._inside, self._over = [], False, at < 0
        if self._over:
            return held + text[taken:], [], ""
        return "" if calls else held, calls, text[taken:]

    def _calls(self, held: str) -> list[ToolCall]:
        """The calls that `held`, marks included, consists of; none if that is not all there is."""
        body = held.removeprefix(self._mark).removesuffix(self._end)
        read: Callable[[str], Iterator[ToolCall]]
        read = _mistral if self._format is ToolFormat.MISTRAL else _objects
        try:
            return list(read(body))
        except (ValueError, RecursionError):
            return []


def _objects(body: str) -> Iterator[ToolCall]:
    """Calls one after the other, perhaps with semicolons between them."""
    at = 0
    while found := _ANOTHER.match(body, at):
        value, at = _DECODER.raw_decode(body, found.end())
        yield _call(value)


def _mistral(body: str) -> Iterator[ToolCall]:
    """A list of calls, or names with their arguments, each after a mark."""
    for part in body.split(ToolFormat.MISTRAL.value[0]):
        if named := _ARGUMENTS.match(part):
            yield _call({"name": named[1], "arguments": _DECODER.decode(part[named.end() :])})
        else:
            value = _DECODER.decode(part.strip())
            yield from map(_call, value if isinstance(value, list) else [value])


def _call(value: Any) -> ToolCall:
    """ValueError if `value` describes no call."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    value = value["function"] if isinstance(value.get("function"), dict) else value
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _DECODER.decode(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("no name, or arguments that are no object")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    f"{name}{text}".encode()  # half a surrogate pair is no text, and its error a ValueError
    return ToolCall(name, text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
