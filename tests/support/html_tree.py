"""An HTML page as a tree, strictly: every element is closed where it was opened."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "hr", "col"}


@dataclass
class Node:
    """An element; children are nodes and texts in order."""

    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    children: "list[Node | str]" = field(default_factory=list)

    def walk(self) -> "Iterator[Node]":
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def find(self, tag: str | None = None, **attributes: str) -> "list[Node]":
        """All elements below with that tag and those attributes; `class_` is one class among others."""

        def fits(node: Node) -> bool:
            wanted = {name: value for name, value in attributes.items() if name != "class_"}
            return (
                (tag is None or node.tag == tag)
                and (attributes.get("class_") is None or attributes["class_"] in node.classes)
                and all(node.attributes.get(name) == value for name, value in wanted.items())
            )

        return [node for node in self.walk() if fits(node)]

    def one(self, tag: str | None = None, **attributes: str) -> "Node":
        (found,) = self.find(tag, **attributes)
        return found

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    @property
    def text(self) -> str:
        return "".join(child.text if isinstance(child, Node) else child for child in self.children)

    def table(self) -> list[list[str]]:
        """The texts of the cells of its rows, heads included."""
        return [[cell.text for cell in row.children if isinstance(cell, Node)] for row in self.find("tr")]


def parse(page: str) -> Node:
    """The whole page. AssertionError if tags do not match."""
    builder = _Builder()
    builder.feed(page)
    builder.close()
    assert len(builder.open) == 1, f"never closed: {[node.tag for node in builder.open[1:]]}"
    return builder.open[0]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        assert len(node.attributes) == len(attrs), f"an attribute of {tag} comes twice"
        self.open[-1].children.append(node)
        if tag not in _VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)
