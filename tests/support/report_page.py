"""Pages of records, as trees."""

from collections.abc import Callable, Iterator
from typing import Any

from support.html_tree import Node

Make = Callable[..., Node]  # of records, the page

HOSTILE = '"><script>win=1</script><img src=x onerror="win=1">\' style=\'x\u202e\ud800\x00&amp;{{}}'
KEPT = {"experiment", "phase", "sent_ns"}  # a record with another word there is another record, or none


def sections(tree: Node) -> set[str]:
    return {str(node.attributes["id"]) for node in tree.one("main").children if isinstance(node, Node)}


def block(tree: Node, anchor: str) -> Node:
    return tree.one("section", id=anchor)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of everything inside, but for most items of long lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from paths(item, (*at, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    *way, last = path
    for key in way:
        value = value[key]
    value[last] = new


def poison(value: Any) -> Any:
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [poison(item) for item in value]
    if isinstance(value, dict):
        found = {key: item if key in KEPT else poison(item) for key, item in value.items()}
        for key in ("model", "build"):
            if isinstance(found.get(key), dict):
                found[key][HOSTILE] = HOSTILE
        return found
    return value
