"""How results look: the screen they are printed on, amounts, a model in one line."""

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from rich.console import Console


class Screen(Console):
    """Standard output, `width` columns wide where it is no terminal. Long lines of prose are left to whoever shows
    them, and a reader that has gone away is an error like any other."""

    def __init__(self, width: int) -> None:
        super().__init__(width=None if sys.stdout.isatty() else width, highlight=False, markup=False)

    def prose(self, line: str) -> None:
        self.print(line, soft_wrap=True)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def headline(facts: Mapping[str, Any]) -> str:
    """The model that a record's facts are about."""
    formats = ", ".join(f"{si(size)}B {name}" for name, size in facts["weight_bytes"].items())
    layers, parameters = facts["layers"], si(facts["parameters"]).rstrip()
    return f"{facts['name']}: {facts['arch']}, {layers} layers, {parameters} parameters ({formats})"


def si(amount: float) -> str:
    """An amount with its decimal prefix, ready for a unit; nothing for nothing."""
    if not amount:
        return ""
    power = 0
    while amount >= 999.5 and power < 5:
        amount, power = amount / 1000, power + 1
    return f"{amount:.3g} {'kMGTP'[power - 1] if power else ''}"


def figure(value: float, digits: int = 4) -> str:
    """A number to so many significant digits, whole ones never cut short."""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"
