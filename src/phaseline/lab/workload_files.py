"""Logs of real traffic, as the field publishes them: Mooncake JSONL, Azure LLM CSV, ShareGPT JSON.

The readers hold one line or one conversation of the file at a time, beside the requests they keep, and refuse
malformed input with the number of its line.
"""

import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phaseline.errors import FileFormatError, RequestError
from phaseline.lab.bounded_text import array_items, at_line, lines, no_constant

BLOCK_TOKENS = 512  # of a Mooncake hash id
MAX_TOKENS = 1 << 24  # of one prompt or one answer

_AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_HUMANS, _ASSISTANTS = {"human", "user"}, {"gpt", "chatgpt", "assistant", "bing", "bard"}


@dataclass(frozen=True, slots=True)
class Logged:
    """One request of a log: its lengths, and what else the log tells.

    at_s    seconds after the log's first request
    blocks  one id per 512 tokens of the prompt: equal ids stand for equal tokens
    text    the prompt itself
    """

    input_tokens: int
    output_tokens: int
    at_s: float | None = None
    blocks: tuple[int, ...] | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """The requests kept, and how many were passed over: too long for `context`, or a conversation without an answer."""

    requests: tuple[Logged, ...]
    passed_over: int


def read_mooncake(path: Path, limit: int, *, context: int | None = None) -> Log:
    """The first `limit` requests of a Mooncake trace that need at most `context` tokens, prompt and answer together.

    A line is {"timestamp": ms, "input_length", "output_length", "hash_ids": one per 512 tokens of the prompt}; further
    keys are ignored, and so are empty lines. Raises FileFormatError with the line number for anything else.
    """
    return _read_in_order(path, lines(path), _mooncake, limit, context)


def read_azure(path: Path, limit: int, *, context: int | None = None) -> Log:
    """As `read_mooncake`, of an Azure LLM inference trace: columns TIMESTAMP, ContextTokens, GeneratedTokens."""
    rows = lines(path)
    number, header = next(rows, (1, ""))
    with at_line(path, number):
        if _cells(header.removeprefix("\ufeff")) != _AZURE_COLUMNS:
            raise ValueError(f"the header must be {','.join(_AZURE_COLUMNS)}")
    return _read_in_order(path, rows, _azure, limit, context)


def estimated_tokens(text: str) -> int:
    """Roughly the tokens of a text where no tokenizer is at hand: one per four bytes, as in English prose."""
    return max(1, math.ceil(len(text.encode()) / 4))


def read_sharegpt(
    path: Path,
    limit: int,
    *,
    context: int | None = None,
    seed: int = 0,
    count_tokens: Callable[[str], int] = estimated_tokens,
) -> Log:
    """`limit` conversations of a ShareGPT file, drawn evenly from the whole file in a random order that `seed` fixes.

    The prompt is the first human turn, the output length that of the answer to it. Turns are listed under
    `conversations` or `conversation`, each as from/value or role/content. Conversations without such a pair, or that
    need more than `context` tokens, are passed over. Raises FileFormatError with the line where a malformed one starts.
    """
    _check_limit(limit)
    rng = random.Random(seed)
    kept: list[Logged] = []
    seen = passed_over = 0
    for line, item in array_items(path):
        with at_line(path, line):
            request = _first_exchange(item, count_tokens)
        if request is None or _too_long(request, context):
            passed_over += 1
            continue
        seen += 1
        if len(kept) < limit:
            kept.append(request)
        elif (slot := rng.randrange(seen)) < limit:
            kept[slot] = request
    rng.shuffle(kept)
    return _log(path, kept, passed_over)


def _read_in_order(
    path: Path,
    rows: Iterator[tuple[int, str]],
    parse: Callable[[str], tuple[float, Logged]],
    limit: int,
    context: int | None,
) -> Log:
    """The first `limit` requests that fit; `parse` gives a line's time in seconds and its request."""
    _check_limit(limit)
    kept: list[Logged] = []
    passed_over, start, last = 0, None, -math.inf
    for number, line in rows:
        with at_line(path, number):
            time, request = parse(line)
            if time < last:
                raise ValueError("its time is before the previous line's: a log must be in order of time")
        start, last = time if start is None else start, time
        if _too_long(request, context):
            passed_over += 1
            continue
        kept.append(replace(request, at_s=time - start))
        if len(kept) == limit:
            break
    return _log(path, kept, passed_over)


def _mooncake(line: str) -> tuple[float, Logged]:
    entry = json.loads(line, parse_constant=no_constant)
    if not isinstance(entry, dict):
        raise ValueError("a JSON object is expected")
    absent = [key for key in ("timestamp", "input_length", "output_length", "hash_ids") if key not in entry]
    if absent:
        raise ValueError(f"{', '.join(absent)} missing")
    time, ids = entry["timestamp"], entry["hash_ids"]
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e15:
        raise ValueError("timestamp must be a number of milliseconds, not negative")
    prompt = _tokens("input_length", entry["input_length"])
    if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
        raise ValueError("hash_ids must be a list of whole numbers, not negative")
    if len(ids) != math.ceil(prompt / BLOCK_TOKENS):
        raise ValueError(f"{len(ids)} hash_ids do not make {prompt} tokens in blocks of {BLOCK_TOKENS}")
    answer = _tokens("output_length", entry["output_length"])
    return time / 1000, Logged(prompt, answer, blocks=tuple(ids))


def _azure(line: str) -> tuple[float, Logged]:
    cells = _cells(line)
    if len(cells) != len(_AZURE_COLUMNS):
        raise ValueError(f"{len(_AZURE_COLUMNS)} cells are expected, not {len(cells)}")
    when = datetime.fromisoformat(cells[0])
    time = when if when.tzinfo else when.replace(tzinfo=UTC)  # no clock changes between two lines
    prompt, answer = (int(cell) if cell.isascii() and cell.isdigit() else None for cell in cells[1:])
    return time.timestamp(), Logged(_tokens("ContextTokens", prompt), _tokens("GeneratedTokens", answer))


def _first_exchange(item: dict[str, Any], count_tokens: Callable[[str], int]) -> Logged | None:
    turns = item.get("conversations", item.get("conversation"))
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("a list of turns is expected under `conversations` or `conversation`")
    spoken = [(turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))) for turn in turns]
    if not all(isinstance(part, str) for turn in spoken for part in turn):
        raise ValueError("a turn must have the texts `from` and `value`, or `role` and `content`")
    asked = next((at for at, (speaker, _) in enumerate(spoken) if speaker in _HUMANS), len(spoken))
    exchange = spoken[asked : asked + 2]
    if len(exchange) < 2 or exchange[1][0] not in _ASSISTANTS or not all(text.strip() for _, text in exchange):
        return None
    prompt, answer = (text for _, text in exchange)
    prompt.encode()  # a lone surrogate cannot be sent: ValueError
    return Logged(count_tokens(prompt), count_tokens(answer), text=prompt)


def _log(path: Path, requests: list[Logged], passed_over: int) -> Log:
    if not requests:
        raise FileFormatError(f"{path} holds no request to replay ({passed_over} passed over)")
    return Log(tuple(requests), passed_over)


def _too_long(request: Logged, context: int | None) -> bool:
    return context is not None and request.input_tokens + request.output_tokens > context


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise RequestError(f"cannot read {limit} requests of a log: at least 1")


def _tokens(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{name} must be a whole number from 1 to {MAX_TOKENS}")
    return value


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")], strict=True), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error
