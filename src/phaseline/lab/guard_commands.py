"""Commands as contenders: each run of one prints what both phases cost, and perhaps what was answered."""

import asyncio
import json
import math
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from phaseline.errors import FileFormatError, PhaselineError, RequestError
from phaseline.lab.contenders import PHASES, Reading
from phaseline.lab.prompts import WORDS, Vocabulary
from phaseline.lab.systems.base import Ask


class CommandContender:
    """A command line, run without a shell. It does the same each time; `read_numbers` reads what it prints."""

    prompted = False
    vocabulary: Vocabulary = WORDS

    def __init__(self, command: str) -> None:
        self.name = command
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise RequestError(f"not a command: {command}: {error}") from None
        if not self._command:
            raise RequestError("an empty command")

    async def start(self) -> None:
        """Each ask is a process of its own."""

    async def serve(self, ask: Ask) -> Reading:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise PhaselineError(f"{self.name}: it cannot be run: {error.strerror}") from error
        try:
            printed, complaints = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.terminate()
                await process.wait()
            raise
        if process.returncode:
            told = complaints.decode(errors="replace").strip().splitlines()[-1:]
            raise PhaselineError(f"{self.name}: exit status {process.returncode}: {' '.join(told)}")
        try:
            return read_numbers(printed.decode(errors="replace"))
        except FileFormatError as error:
            raise FileFormatError(f"{self.name}: {error}") from None

    async def stop(self) -> None:
        """Nothing runs between the asks."""

    async def describe(self) -> Mapping[str, Any]:
        return {"kind": "command"}

    async def close(self) -> None:
        """Nothing is held."""


def read_numbers(text: str) -> Reading:
    """Costs of both phases, and the answer if it is told, from one JSON document or from lines of JSON.

    It understands the records of `phaseline measure`, `run` and `lab load`, and the rows of llama-bench. Several rows
    of a phase count by the geometric mean of their rates. Raises FileFormatError for anything else.
    """
    costs: dict[str, list[float]] = {phase: [] for phase in PHASES}
    answer: tuple[int, ...] | None = None
    for record in _records(text):
        for phase, seconds in _costs(record):
            if not 0 < seconds < math.inf:
                raise FileFormatError(f"{phase} takes {seconds} seconds: that is no measurement")
            costs[phase].append(seconds)
        if isinstance(ids := record.get("token_ids"), list):
            answer = (*(answer or ()), *ids)
    missing = [phase for phase in PHASES if not costs[phase]]
    if missing:
        raise FileFormatError(
            f"it prints nothing about {' and '.join(missing)}: the guard reads records of `phaseline measure --json` "
            "and `phaseline run --json`, summaries of a load, and rows of `llama-bench -o json`"
        )
    means = {phase: math.exp(sum(map(math.log, some)) / len(some)) for phase, some in costs.items()}
    return Reading(means, answer, None)


def _records(text: str) -> Iterator[Mapping[str, Any]]:
    try:
        documents = [json.loads(text)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise FileFormatError(f"it does not print JSON, but {text.strip()[:80]!r}") from None
    for document in documents:
        for record in document if isinstance(document, list) else [document]:
            if isinstance(record, dict):
                yield record


def _costs(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Seconds per token, or of a whole prompt: a unit that differs from record to record, not from run to run."""
    try:
        if "ttft_s" in record:  # phaseline run
            yield "prefill", float(record["ttft_s"])
            yield "decode", float(record["tpot_s"])
        elif "avg_ts" in record:  # a row of llama-bench; those of both phases at once belong to neither
            if not record["n_gen"]:
                yield "prefill", 1 / float(record["avg_ts"])
            elif not record["n_prompt"]:
                yield "decode", 1 / float(record["avg_ts"])
        elif isinstance(summary := record.get("summary"), dict):  # phaseline lab load
            yield "prefill", float(summary["median_ttft_ms"]) / 1e3
            yield "decode", float(summary["median_tpot_ms"]) / 1e3
        else:  # phaseline measure: of one stream, read the usual way
            for row in record.get("results", ()):
                if row["mode"] == "chunk" and row["streams"] == 1 and row["phase"] in PHASES:
                    yield row["phase"], 1 / float(row["tok_s"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise FileFormatError(f"a record lacks what the guard reads: {type(error).__name__}: {error}") from None
