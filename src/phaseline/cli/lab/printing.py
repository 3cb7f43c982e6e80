"""How an experiment's record is printed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phaseline.cli.show import Screen

_WIDTH = 100  # where no terminal sets one

Cell = str | float | None


def print_record(record: Mapping[str, Any], show: Callable[[Mapping[str, Any], "Screen"], None]) -> None:
    """Of any experiment: what was measured where, its finding, what `show` adds, and the error of the clock."""
    from phaseline.cli.show import Screen

    screen = Screen(_WIDTH)
    _print_head(record, screen)
    show(record, screen)
    _print_calibration(record.get("calibration"), screen)


def print_table(screen: "Screen", headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table: texts to the left, numbers to the right with four digits, "-" for None."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from phaseline.cli.show import figure

    rows = list(rows)
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for header, column in zip(headers, zip(*rows, strict=True) if rows else [()] * len(headers), strict=True):
        text = any(isinstance(cell, str) for cell in column)
        table.add_column(header, justify="left" if text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*("-" if c is None else c if isinstance(c, str) else figure(c) for c in row))
    screen.print(table)


def _print_head(record: Mapping[str, Any], screen: "Screen") -> None:
    from phaseline.cli.show import headline

    if "system" in record:
        model, machine = record["model"], record["machine"]
        named = headline(model) if "weight_bytes" in model else model["name"] or "a model that it does not name"
        where = f"from {machine['cpu']}" if machine.get("client_only") else f"on {machine['cpu']}"
        screen.prose(f"{record['system']['name']}, {named}; {where}")
    if record.get("partial"):
        screen.prose("PARTIAL: interrupted before the end")
    screen.prose(record["finding"])


def _print_calibration(calibration: Mapping[str, Any] | None, screen: "Screen") -> None:
    if calibration:
        error = calibration["error_ms"]
        p99 = "" if error["p99"] is None else f", 99% within {error['p99']:.2g} ms"
        exact = "every event came" if calibration["counts_exact"] else "EVENTS WERE LOST"
        error_told = f"median error {error['p50']:.2g} ms{p99}; {exact}"
        screen.prose(f"this client's clock, held against a scripted server: {error_told}")
