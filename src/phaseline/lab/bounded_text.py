"""Reading text files of any size with little memory: a line, or an item of a JSON array, at a time, its place known."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, TextIO

from phaseline.errors import FileFormatError, PhaselineError

MAX_LINE_BYTES = 1 << 20
MAX_ITEM_CHARS = 1 << 23

_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_VIEW_CHARS = 1 << 16


def no_constant(name: str) -> NoReturn:
    """For `parse_constant`: NaN and infinities are not JSON."""
    raise ValueError(f"{name} is not JSON")


@contextmanager
def at_line(path: Path, number: int) -> Iterator[None]:
    """Turns what is wrong with a line into a refusal that names it."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}, line {number}: {error}") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PhaselineError(f"cannot read {path}: {error.strerror}") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not empty. Raises FileFormatError, naming the line, if it is no UTF-8."""
    with _readable(path), path.open("rb") as file:
        for number in count(1):
            raw = file.readline(MAX_LINE_BYTES + 1)
            if not raw:
                return
            with at_line(path, number):
                if len(raw) > MAX_LINE_BYTES:
                    raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
                text = raw.decode()
            if not text.isspace():
                yield number, text


def array_items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line where it starts, object) of each object in the JSON array that the file is.

    Raises FileFormatError, naming the line, for anything else.
    """
    with _readable(path), path.open(encoding="utf-8-sig") as file:
        view = _View(path, file)
        view.take("[", "a JSON array of objects is expected")
        closed = view.peek() == "]"
        while not closed:
            if view.peek() != "{":
                raise view.refusal("a JSON object is expected")
            yield view.line, view.value()
            closed = view.peek() == "]"
            if not closed:
                view.take(",", "a comma or the end of the array is expected")
        view.take("]", "the end of the array is expected")
        if view.peek():
            raise view.refusal("nothing may follow the array")


class _View:
    """A sliding view of a text file: what was taken is forgotten, its lines are counted."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder(parse_constant=no_constant)
        self.line = 1

    def refusal(self, reason: str) -> FileFormatError:
        return FileFormatError(f"{self._path}, line {self.line}: {reason}")

    def peek(self) -> str:
        """The next character that is no white space; empty at the end of the file."""
        while True:
            match = _WHITE_SPACE.match(self._text, self._at)
            assert match  # it matches nothing, too
            self._skip(match.end())
            if self._at < len(self._text) or not self._grow():
                return self._text[self._at : self._at + 1]

    def take(self, expected: str, otherwise: str) -> None:
        if self.peek() != expected:
            raise self.refusal(otherwise)
        self._skip(self._at + 1)

    def value(self) -> dict[str, Any]:
        """The object that starts here."""
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self.refusal("nested too deeply") from error
            except ValueError as error:  # malformed, or not all of it is in view
                if len(self._text) - self._at > MAX_ITEM_CHARS or not self._grow():
                    raise self.refusal(f"malformed, or longer than {MAX_ITEM_CHARS} characters: {error}") from error
            else:
                self._skip(end)
                assert isinstance(found, dict)  # it starts with a brace
                return found

    def _skip(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _grow(self) -> bool:
        """Reads on, as much again as is in view; False at the end of the file."""
        rest = self._text[self._at :]
        try:
            more = self._file.read(max(_VIEW_CHARS, len(rest)))
        except UnicodeDecodeError as error:
            raise self.refusal(f"soon after, bytes that are not UTF-8: {error.reason}") from error
        self._text, self._at = rest + more, 0
        return bool(more)
