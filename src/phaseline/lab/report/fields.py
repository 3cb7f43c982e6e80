"""Reading records strictly: each value has the type it must have, or is refused with the place where it stands."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from phaseline.errors import FileFormatError, PhaselineError
from phaseline.lab.trace import Trace

T = TypeVar("T")
_LEAST, _MOST = 1e-30, 1e30  # of what can be drawn


class Fields:
    """A JSON object and where it stands. Keys that nobody asks for are nobody's concern.

    Every reader raises FileFormatError, naming the place, for a value of another type; those called `maybe_` give
    None for null and for a missing key, the others refuse both.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values, self.place = values, place

    def __contains__(self, key: str) -> bool:
        """Present and not null."""
        return self._values.get(key) is not None

    def refusal(self, key: str, wanted: str) -> FileFormatError:
        found = f"{self._values[key]!r:.60}" if key in self._values else "nothing"
        return FileFormatError(f"{self.place}: {key} must be {wanted}, not {found}")

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def text(self, key: str) -> str:
        return self._typed(key, str, "a text")

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def maybe_flag(self, key: str) -> bool | None:
        return self.flag(key) if key in self else None

    def maybe_text(self, key: str) -> str | None:
        return self.text(key) if key in self else None

    def whole(self, key: str) -> int:
        """A count: a whole number, not negative."""
        value = self._values.get(key)
        if type(value) is not int or value < 0:
            raise self.refusal(key, "a whole number, not negative")
        return value

    def maybe_whole(self, key: str) -> int | None:
        return self.whole(key) if key in self else None

    def number(self, key: str) -> float:
        value = _number(self._values.get(key))
        if value is None:
            raise self.refusal(key, "a finite number")
        return value

    def maybe_number(self, key: str) -> float | None:
        return self.number(key) if key in self else None

    def positive(self, key: str) -> float:
        value = _number(self._values.get(key))
        if value is None or value < _LEAST:
            raise self.refusal(key, "a number above 0")
        return value

    def maybe_positive(self, key: str) -> float | None:
        return self.positive(key) if key in self else None

    def positives(self, key: str) -> list[float]:
        """Those of a list of numbers above 0 that are not null."""
        found = [_number(item) for item in self._list(key) if item is not None]
        if not all(item is not None and item >= _LEAST for item in found):
            raise self.refusal(key, "a list of numbers above 0")
        return [item for item in found if item is not None]

    def numbers(self, key: str) -> list[float]:
        """A list of numbers; empty where the key is missing."""
        found = [_number(item) for item in self._list(key)]
        if None in found:
            raise self.refusal(key, "a list of finite numbers")
        return [item for item in found if item is not None]

    def texts(self, key: str) -> list[str]:
        """A list of texts; one text counts as a list of it, and a missing key as none."""
        if isinstance(self._values.get(key), str):
            return [self.text(key)]
        found = self._list(key)
        if not all(isinstance(item, str) for item in found):
            raise self.refusal(key, "a list of texts")
        return found

    def child(self, key: str) -> "Fields":
        """The object at `key`; an empty one where the key is missing."""
        value = self._values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refusal(key, "an object")
        return Fields(value, f"{self.place}: {key}")

    def children(self, key: str) -> "list[Fields]":
        """The objects of the list at `key`; none where the key is missing."""
        found = self._list(key)
        if not all(isinstance(item, Mapping) for item in found):
            raise self.refusal(key, "a list of objects")
        return [Fields(item, f"{self.place}: {key}[{n}]") for n, item in enumerate(found)]

    def items(self) -> "Iterator[tuple[str, Any]]":
        return iter(self._values.items())

    def traces(self, key: str = "traces") -> list[Trace]:
        """The raw traces at `key`; none where the key is missing."""
        return self.each(key, Trace.from_dict)

    def each(self, key: str, read: Callable[[Any], T]) -> list[T]:
        """`read` of every object of a list; what it refuses is refused with its place."""
        found = []
        for one in self.children(key):
            try:
                found.append(read(dict(one.items())))
            except (PhaselineError, KeyError, TypeError) as error:
                raise FileFormatError(f"{one.place}: {error!s:.200}") from error
        return found

    def _typed(self, key: str, kind: type[T], wanted: str) -> T:
        value = self._values.get(key)
        if not isinstance(value, kind):
            raise self.refusal(key, wanted)
        return value

    def _list(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refusal(key, "a list")
        return value


def _number(value: Any) -> float | None:
    """None for anything but a number, and for one so large that nothing that is measured can be meant."""
    return float(value) if type(value) in (int, float) and abs(value) <= _MOST else None
