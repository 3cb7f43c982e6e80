"""The bar that shows how far a measurement is."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error that goes away when it is done; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("warm-up", total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=label)
