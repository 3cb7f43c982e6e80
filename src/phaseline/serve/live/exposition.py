"""Prometheus's text format, version 0.0.4: counters, gauges and histograms, and how they are written down."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]  # values, in the order of the family's label names


class Family:
    """One name with its help, its type, and a value for each combination of labels that was ever set."""

    kind = "gauge"

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def get(self, *labels: str) -> float:
        """The value so far; 0 where there is none."""
        return self._values.get(labels, 0)

    def lines(self) -> Iterator[str]:
        """The family as it is exposed."""
        yield f"# HELP {self.name} {_escaped(self._help)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self._samples()

    def _samples(self) -> Iterator[str]:
        for labels, value in self._values.items():
            yield f"{self.name}{self._braces(labels)} {_number(value)}"

    def _braces(self, values: Labels, *more: tuple[str, str]) -> str:
        pairs = [*zip(self._labels, values, strict=True), *more]
        inside = ",".join(f'{name}="{_quoted(value)}"' for name, value in pairs)
        return f"{{{inside}}}" if inside else ""


class Gauge(Family):
    """What is so now."""

    def set(self, value: float, *labels: str) -> None:
        """Replace the value."""
        self._values[labels] = value

    def clear(self) -> None:
        """Forget every value."""
        self._values.clear()


class Counter(Family):
    """What has happened so far."""

    kind = "counter"

    def add(self, amount: float, *labels: str) -> None:
        """It has happened `amount` times more."""
        self._values[labels] = self._values.get(labels, 0) + amount


class Histogram(Family):
    """How many observations were at most so large, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float], *labels: str) -> None:
        super().__init__(name, help, *labels)
        self.bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {} if labels else {(): self._none()}

    def observe(self, value: float, *labels: str) -> None:
        """Count one observation."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = self._none()
        counts[bisect_left(self.bounds, value)] += 1
        self._values[labels] = self._values.get(labels, 0) + value

    def counts(self, *labels: str) -> list[int]:
        """Observations in each bucket alone, the last being those above every bound."""
        return list(self._counts.get(labels) or self._none())

    def _none(self) -> list[int]:
        return [0] * (len(self.bounds) + 1)

    def _samples(self) -> Iterator[str]:
        for labels, counts in self._counts.items():
            so_far = 0
            for bound, count in zip((*self.bounds, math.inf), counts, strict=True):
                so_far += count
                yield f"{self.name}_bucket{self._braces(labels, ('le', _number(bound)))} {so_far}"
            yield f"{self.name}_sum{self._braces(labels)} {_number(self._values[labels])}"
            yield f"{self.name}_count{self._braces(labels)} {so_far}"


def render(families: Iterable[Family]) -> str:
    """All families, as the body of an answer."""
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
