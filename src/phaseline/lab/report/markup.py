"""HTML and SVG as nested function calls. Whatever is not `Markup` already is text, and is escaped."""

import re
from collections.abc import Iterable
from html import escape
from typing import Any

_VOID = frozenset({"meta", "link", "br", "hr", "col"})
# Control characters, lone surrogates, and what reorders text: from a record they would only hide what it says.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


class Markup(str):
    """A piece of HTML that is safe to put into a page as it is."""

    __slots__ = ()


Child = object  # text, a number, Markup, None (nothing), or an iterable of these


def text(value: object) -> Markup:
    """Any text as harmless HTML."""
    return value if isinstance(value, Markup) else Markup(escape(_UNSEEN.sub("\ufffd", str(value))))


def prose(words: str) -> Markup:
    """The page's own words, with the apostrophes of print."""
    return text(words.replace("'", "\u2019"))


def join(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Any) -> Markup:
    """One element. `class_` means class, `aria_label` aria-label. None and False leave an attribute out, True is bare.

    Names are the program's own; children and values may come from anywhere.
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    return Markup(f"<{name}{opening}>" if name in _VOID else f"<{name}{opening}>{join(*children)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str) or not isinstance(child, Iterable):
            yield text(child)
        else:
            yield from _flat(child)
