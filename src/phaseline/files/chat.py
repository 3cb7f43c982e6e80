"""Conversations to prompts, through the chat template that a file carries.

A template is a program from the internet: it runs in jinja2's immutable sandbox, and its loop turns, calls and output
are counted, so that one that never ends becomes an error.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from phaseline.errors import RequestError
from phaseline.files.tokenizer import Tokenizer

MAX_STEPS = 200_000  # loop turns, calls and elements of ranges
MAX_OUTPUT = 16 << 20  # characters


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
) -> str:
    """The prompt for `messages` (each with "role" and "content") as the file's template spells it.

    `add_generation_prompt` ends it where the assistant's answer begins. RequestError if the file has no template, or
    if the template refuses the messages, fails or runs away.
    """
    if tokenizer.chat_template is None:
        raise RequestError("the file has no chat template; --raw sends the text as it is")
    bos, eos = (None if id is None else tokenizer.token_text(id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    variables = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos or "",
        "eos_token": eos or "",
    }
    try:
        return _Sandbox().render(tokenizer.chat_template, variables)
    except Exception as error:  # whatever a foreign program may raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RequestError(f"the file's chat template failed: {reason}; --raw sends the text as it is") from None


class _Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; here its content is as it stands."""

    tags = {"generation"}  # noqa: RUF012 (an attribute of the instance in jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """One rendering's environment: the settings, filters and functions that chat templates are written for."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.filters["tojson"] = _tojson
        self.globals |= {"range": self._range, "raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._steps = 0

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The template's output."""
        tree = self.parse(template)
        for loop in tree.find_all(nodes.For):  # calls are counted, so a call in each turn counts the turns
            turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(turn, lineno=loop.lineno))
        parts: list[str] = []
        size = 0
        for part in self.from_string(tree).generate(variables):
            size += len(part)
            if size > MAX_OUTPUT:
                raise TemplateRuntimeError(f"its output is longer than {MAX_OUTPUT} characters")
            parts.append(part)
        return "".join(parts)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Jinja's way into every call of a sandboxed template."""
        self._spend(1)
        return super().call(context, obj, *args, **kwargs)

    def turn(self) -> None:
        """What every loop turn begins with."""

    def _range(self, *bounds: int) -> range:
        found = safe_range(*bounds)
        self._spend(len(found))
        return found

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise TemplateRuntimeError(f"it takes more than {MAX_STEPS} steps")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja's own filter, which no model has been trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
