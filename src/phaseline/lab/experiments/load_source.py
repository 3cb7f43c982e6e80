"""Where a load's requests come from: random ones, or a log of real traffic; fresh ones for each run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from phaseline.lab.prompts import WORDS, Made, Vocabulary, logged_asks, random_asks
from phaseline.lab.systems.base import Ask
from phaseline.lab.wording import counted
from phaseline.lab.workload import logged_times
from phaseline.lab.workload_files import Log

_MANY = 1 << 24  # random requests: more than any load sends


class Source(Protocol):
    """Requests for one run after another."""

    requests: int  # of each run
    note: str | None  # what a reader must know of them

    def asks(self, run: int) -> Sequence[Ask]:
        """Those of a run, counted from 0."""

    def warmups(self, count: int) -> Sequence[Ask]:
        """As many like them that share nothing with any run but what all requests share."""

    def times(self) -> Sequence[float] | None:
        """When they were made (seconds), None where there is no such time."""


class RandomSource:
    """Random prompts, all different; `prefix` tokens that all of them begin with, for a cache to keep."""

    def __init__(
        self,
        requests: int,
        input_tokens: int,
        output_tokens: int,
        *,
        prefix: int = 0,
        range_ratio: float = 0.0,
        vocabulary: Vocabulary = WORDS,
        ignore_eos: bool = True,
        seed: int = 0,
    ) -> None:
        self.requests = requests
        self.note = f"all prompts begin with the same {prefix} tokens" if prefix else None
        self._asks: Made[Ask] = random_asks(
            _MANY,
            input_tokens,
            output_tokens,
            vocabulary=vocabulary,
            range_ratio=range_ratio,
            seed=seed,
            ignore_eos=ignore_eos,
        )
        if prefix:
            shared = random_asks(_MANY + 1, prefix, 1, vocabulary=vocabulary, seed=seed)[_MANY].prompt
            plain = self._asks
            self._asks = Made(_MANY, lambda number: _prefixed(shared, plain[number]))

    def asks(self, run: int) -> Sequence[Ask]:
        return self._asks[run * self.requests : (run + 1) * self.requests]

    def warmups(self, count: int) -> Sequence[Ask]:
        return self._asks[_MANY - count :]

    def times(self) -> None:
        return None


class LogSource:
    """A log's requests. Prompts that are made up to its lengths are others in each run; its own texts are the same."""

    def __init__(
        self,
        log: Log,
        *,
        speed: float = 1.0,
        vocabulary: Vocabulary = WORDS,
        ignore_eos: bool = True,
        seed: int = 0,
    ) -> None:
        self.requests = len(log.requests)
        self.note = f"passed over: {counted(log.passed_over, 'request')} of the log" if log.passed_over else None
        self._log, self._speed, self._seed = log, speed, seed
        self._make: Callable[[int, int], Made[Ask]] = lambda seed, warmups: logged_asks(
            log, warmups=warmups, vocabulary=vocabulary, seed=seed, ignore_eos=ignore_eos
        )

    def asks(self, run: int) -> Sequence[Ask]:
        return self._make(self._seed + run, 0)

    def warmups(self, count: int) -> Sequence[Ask]:
        return self._make(self._seed, count)[self.requests :]

    def times(self) -> Sequence[float] | None:
        if any(one.at_s is None for one in self._log.requests):
            return None
        return logged_times(self._log, self._speed)


def _prefixed(shared: str | Sequence[int], ask: Ask) -> Ask:
    if isinstance(shared, str):
        return replace(ask, prompt=f"{shared} {ask.prompt}")
    return replace(ask, prompt=[*shared, *ask.prompt])
