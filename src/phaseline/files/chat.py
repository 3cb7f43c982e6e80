"""Conversations to prompts, through the chat template that a file carries.

A template is a program from the internet: it runs in jinja2's immutable sandbox, and its loop turns, calls, output and
all text it makes on the way are counted, the text before it is made, so that one that never ends or takes all memory
becomes an error.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from types import CodeType, MappingProxyType
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateRuntimeError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter, safe_range
from jinja2.visitor import NodeTransformer

from phaseline.errors import RequestError
from phaseline.files import chat_costs as costs
from phaseline.files.tokenizer import Tokenizer

MAX_STEPS = 200_000  # loop turns, calls and elements of ranges
MAX_OUTPUT = 16 << 20  # characters, of the whole and of any value on the way
MAX_MADE = 128 << 20  # characters of all values together
MAX_BITS = 1 << 14  # of an integer
MAX_INDENT = 64


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The prompt for `messages` (each with "role" and "content") as the file's template spells it.

    `tools`: functions the model may call, as JSON schemas; a template that knows none leaves them out.
    `add_generation_prompt` ends it where the assistant's answer begins. `more`: variables of the template's own, such
    as enable_thinking; they hide none of those here. RequestError if the file has no template, or
    if the template refuses the messages, fails or runs away.
    """
    if tokenizer.chat_template is None:
        raise RequestError("the file has no chat template")
    bos, eos = (None if id is None else tokenizer.token_text(id) for id in (tokenizer.bos_id, tokenizer.eos_id))
    variables = {
        **more,
        "messages": messages,
        "tools": tools or None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos or "",
        "eos_token": eos or "",
    }
    try:
        return _Sandbox().render(tokenizer.chat_template, variables)
    except Exception as error:  # whatever a foreign program may raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RequestError(f"the file's chat template failed: {reason}") from None


class _Generation(Extension):
    """`{% generation %}` marks the assistant's own words for training; here its content is as it stands."""

    tags = {"generation"}  # noqa: RUF012 (an attribute of the instance in jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewrite(NodeTransformer):
    """Sends what jinja compiles to plain Python, which no environment sees, through counted filters."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return nodes.Filter(node, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)  # calls are counted, so a call in each turn counts the turns
        turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        return node


class _Sandbox(ImmutableSandboxedEnvironment):
    """One rendering's environment: the settings, filters and functions that chat templates are written for."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=self._spell
        )
        self._steps = self._made = 0
        self.concat = self._concat  # type: ignore[method-assign] # what joins the text of macros and blocks
        named = {**self.filters, "tojson": _tojson, "counted": _counted}
        self.filters = {name: self._counting(name, filter) for name, filter in named.items()}
        self.globals |= {"range": self._range, "raise_exception": _raise_exception, "strftime_now": _strftime_now}
        del self.globals["lipsum"]

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """The template's output."""
        parts: list[str] = []
        size = 0
        for part in Template.from_code(self, _compiled(template), self.globals).generate(variables):
            size += len(part)
            if size > MAX_OUTPUT:
                raise TemplateRuntimeError(f"its output is longer than {MAX_OUTPUT} characters")
            parts.append(part)
        return "".join(parts)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Jinja's way into every call of a sandboxed template."""
        self._spend(1)
        name, owner = str(getattr(obj, "__name__", "")), getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            self.make(costs.length(owner))
            if name == "join":
                args = tuple(map(_listed, args))
                self.make(self._joined(args[0], owner))
            elif name in costs.METHODS:
                self.make(costs.METHODS[name](owner, *args, **kwargs))
        return self._counted(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Jinja's way into every binary operator."""
        whole = isinstance(left, int) and isinstance(right, int)
        if whole:
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise TemplateRuntimeError(f"it computes with integers of more than {MAX_BITS} bits")
        elif operator == "*":
            self.make(costs.product(left, right))
        elif operator == "+":
            self.make(costs.length(left) + costs.length(right))
        elif operator == "%" and isinstance(left, str | bytes):
            self.make(costs.printf(left, right, MAX_OUTPUT))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's way into str.format and format_map."""
        if super().wrap_str_format(value) is None:
            return None
        text, formatter = value.__self__, _Formatter(self)
        if value.__name__ == "format":
            return lambda *args, **kwargs: formatter.vformat(text, args, kwargs)
        return lambda mapping: formatter.vformat(text, (), mapping)

    def turn(self) -> None:
        """What every loop turn begins with."""

    def make(self, size: int) -> None:
        """Count `size` characters that are about to be made."""
        self._made += max(size, 0)
        if size > MAX_OUTPUT or self._made > MAX_MADE:
            raise TemplateRuntimeError(f"it makes values of more than {MAX_OUTPUT} characters, or {MAX_MADE} in all")

    def _counting(self, name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
        """`filter`, counted: its estimate before it runs and its result after."""
        skipped = int(hasattr(filter, "jinja_pass_arg"))  # the context or environment that jinja puts first

        @wraps(filter)
        def counted(*args: Any, **kwargs: Any) -> Any:
            own, (value, *others) = args[:skipped], args[skipped:]
            if name == "join":
                value = _listed(value)
                self.make(self._joined(value, *others[:1], *([kwargs["d"]] if "d" in kwargs else [])))
            elif name == "format":
                self.make(costs.printf(str(value), kwargs or tuple(others), MAX_OUTPUT))
            elif name in costs.FILTERS:
                self.make(costs.FILTERS[name](value, *others, **kwargs))
            elif name in costs.TEXTUAL:
                self.make(costs.weight(value, MAX_OUTPUT))
            return self._counted(filter(*own, value, *others, **kwargs))

        return counted

    def _joined(self, pieces: Any, between: Any = "") -> int:
        return costs.weight(pieces, MAX_OUTPUT) + len(pieces) * len(str(between))

    def _counted(self, value: Any) -> Any:
        self.make(costs.length(value))
        return value

    def _concat(self, parts: Iterable[str]) -> str:
        found = list(parts)
        self.make(sum(map(len, found)))
        return "".join(found)

    def _spell(self, value: Any) -> Any:
        """What an expression puts out, before it becomes text."""
        if not isinstance(value, str):
            self.make(costs.weight(value, MAX_OUTPUT))
        return value

    def _range(self, *bounds: int) -> range:
        found = safe_range(*bounds)
        self._spend(len(found))
        return found

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise TemplateRuntimeError(f"it takes more than {MAX_STEPS} steps")


@lru_cache(8)
def _compiled(template: str) -> CodeType:
    """What jinja makes of a template; it takes longer than all else that a message needs."""
    sandbox = _Sandbox()
    return sandbox.compile(_Rewrite().visit(sandbox.parse(template)))


class _Formatter(SandboxedFormatter):
    """str.format that counts what its fields make."""

    def __init__(self, sandbox: _Sandbox) -> None:
        super().__init__(sandbox)
        self._sandbox = sandbox

    def format_field(self, value: Any, format_spec: str) -> str:
        self._sandbox.make(costs.widths(format_spec) + costs.weight(value, MAX_OUTPUT))
        return str(super().format_field(value, format_spec))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of jinja's own filter, which no model has been trained on."""
    if (len(indent) if isinstance(indent, str) else indent or 0) > MAX_INDENT:
        raise TemplateRuntimeError(f"it indents by more than {MAX_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(encoder.iterencode(value))  # piece by piece: other threads run meanwhile


def _counted(value: Any) -> Any:
    """A filter that changes nothing: filters are counted."""
    return value


def _listed(value: Any) -> Any:
    """Pieces that can be counted before they are joined."""
    return list(value) if isinstance(value, Iterator) else value


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
