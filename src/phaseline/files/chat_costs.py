"""How much text an operation of a chat template would make, told before it is made.

Estimates are in characters, never far below the truth and generous above it. What only copies its input (upper, trim,
split) needs none: the template's environment counts what comes out.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

_ELEMENT = 8  # what an element of a collection costs besides itself: a pointer, or ", " and its quotes
_COLLECTION = 64  # what one costs within another


def weight(value: Any, limit: int) -> int:
    """About how long `value` is as text, what it holds included; counting ends soon after `limit`."""
    total, todo = 0, [value]
    while todo and total <= limit:
        item = todo.pop()
        if isinstance(item, str | bytes):
            total += len(item)
        elif isinstance(item, Mapping):
            total += _COLLECTION + _ELEMENT * len(item)
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, range):
            total += _ELEMENT * len(item)
        elif isinstance(item, Collection):
            total += _COLLECTION + _ELEMENT * len(item)
            todo += item
        elif isinstance(item, int):
            total += item.bit_length() // 3
    return total


def length(value: Any) -> int:
    """The cost of `value` itself, without what it holds."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 8
    return _ELEMENT * len(value) if isinstance(value, list | tuple | dict | set | frozenset) else 0


def product(left: Any, right: Any) -> int:
    """Cost of `left * right`."""
    if isinstance(left, int):
        left, right = right, left
    return length(left) * max(right, 1) if isinstance(right, int) and not isinstance(left, int | float) else 0


def printf(text: str | bytes, values: Any, limit: int) -> int:
    """Cost of `text % values`: every width and precision, those that `*` takes from the values too, and the values."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    given = values if isinstance(values, tuple) else (values,)
    stars = sum(abs(value) for value in given if isinstance(value, int)) if "*" in text else 0
    return len(text) + widths(text) + stars + text.count("%") * weight(values, limit)


def widths(text: str) -> int:
    """The sum of the numbers in a format, no number counted beyond twelve digits."""
    return sum(int(digits[:12]) for digits in re.findall(r"[0-9]+", text))


def _width(value: Any, width: int = 80, *_: Any) -> int:
    return width


def _tabs(text: str, tabsize: int = 8) -> int:
    return text.count("\t") * tabsize


def _bytes(value: int, length: int = 1, *_: Any, **__: Any) -> int:
    return length


def _replace(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    return str(text).count(str(old)) * len(str(new))


def _translate(text: str, table: Mapping[int, Any]) -> int:
    return len(text) * max((length(new) for new in table.values()), default=0)


def _indent(text: str, width: int | str = 4, *_: Any, **__: Any) -> int:
    return (len(text.splitlines()) + 1) * (len(width) if isinstance(width, str) else width)


def _wordwrap(text: str, width: int = 79, break_long_words: bool = True, wrapstring: str | None = None, *_: Any) -> int:
    return len(text) * (1 + len(wrapstring or ""))


def _parts(value: Any, parts: int, *_: Any, **__: Any) -> int:
    return _ELEMENT * parts


METHODS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width),
    "expandtabs": _tabs,
    "replace": _replace,
    "to_bytes": _bytes,
    "translate": _translate,
}
FILTERS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("batch", "slice"), _parts),
    "center": _width,
    "indent": _indent,
    "replace": _replace,
    "wordwrap": _wordwrap,
}
TEXTUAL = frozenset(  # filters that spell out all that a value holds
    [
        *("capitalize", "e", "escape", "forceescape", "lower", "pprint", "safe", "string", "striptags", "title"),
        *("tojson", "trim", "upper", "urlencode", "urlize", "wordcount", "xmlattr"),
    ]
)
