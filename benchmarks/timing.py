"""What the benchmarks of steps share: rounds of cells in random order, ratios of rounds, and a table of them."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from phaseline.lab.drive import timed
from phaseline.lab.stats import bootstrap_interval, median

Seconds = dict[str, list[float]]  # of each cell, one a round


def take_turns(cells: Mapping[str, Callable[[], Any]], rounds: int, repeats: int = 5, seed: int = 0) -> Seconds:
    """Seconds of each cell: the median of `repeats` in a row, once in each round, after a round to warm up."""
    rng, seconds = random.Random(seed), Seconds({name: [] for name in cells})
    for round_ in range(rounds + 1):
        for name in rng.sample(list(cells), len(cells)):
            took = median([timed(cells[name]) for _ in range(repeats)])
            if round_:
                seconds[name].append(took)
    return seconds


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median over rounds, its interval, and the values."""
    low, high = bootstrap_interval(values) or (None, None)
    return {"value": median(values), "low": low, "high": high, "rounds": list(values)}


def show(title: str, rows: Sequence[tuple[str, Mapping[str, Any], str]]) -> None:
    """Rows of what it is, its summary, and what was hoped for."""
    table = Table(title=title)
    for heading in ("", "median", "95% interval", "wanted"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, figure, wanted in rows:
        span = "-" if figure["low"] is None else f"{figure['low']:.3g} - {figure['high']:.3g}"
        table.add_row(name, f"{figure['value']:.3g}", span, wanted)
    Console().print(table)
