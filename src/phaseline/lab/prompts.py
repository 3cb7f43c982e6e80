"""What is asked: random prompts and those of a log, as token ids or as text. The same seed asks the same."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from phaseline.errors import RequestError
from phaseline.lab.systems.base import Ask
from phaseline.lab.workload_files import BLOCK_TOKENS, Log

T = TypeVar("T")
Vocabulary = Sequence[int] | Sequence[str]  # token ids to draw from, or words for systems that take text only

# Short everyday words: each is one token, with a space before it, in the usual vocabularies of English.
_WORDS = """
air apple area arm art baby back ball bank base bear bed bell big bird black blood blue board boat body bone book
box boy bread brown build bus buy call camp car card care case cat chair city class clean clear clock cloud coat
cold color come cook cool corn cost count cover cross cup cut dark day deep dog door down draw dream drive dry ear
earth east easy edge egg end eye face fall farm fast field fight fill film find fire fish five floor flow fly food
foot force form four free fresh front fruit full game gas girl glass gold good grass gray great green group grow
hair half hall hand happy hard hat head heart heat heavy help high hill hold home horse hot hour house ice idea
iron job join jump keep key kind king lake land large late leaf learn leg light line list long look love low map
mark meat metal milk mind moon mouth move music name neck new night north nose note oil old open page paper park
part path pen plan plant plate play point pool post press price quick quiet race radio rain read red rest rice rich
ring river road rock room root round row rule run salt sand sea seat seed ship shirt shop short side sign
sit size skin sky sleep slow small snow soft soil song sound south space star start step stone store storm story
sugar sun sweet table tail talk tall team ten test thin three time
"""
WORDS = tuple(_WORDS.split())

FIRSTS, ASKS, BLOCKS, ARRIVALS = range(4)  # what is drawn, each from its own generator


class Made(Sequence[T]):
    """A list whose items are made each time they are read, alike each time: a log's long prompts do not pile up."""

    def __init__(self, length: int, make: Callable[[int], T]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Made[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Made[T]":
        chosen = range(self._length)[index]
        return self._make(chosen) if isinstance(chosen, int) else Made(len(chosen), lambda i: self._make(chosen[i]))


def random_asks(
    count: int,
    input_tokens: int,
    output_tokens: int,
    *,
    vocabulary: Vocabulary = WORDS,
    range_ratio: float = 0.0,
    seed: int = 0,
    ignore_eos: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Made[Ask]:
    """`count` asks with random prompts that differ from the start, so that no prefix cache can serve one with another.

    As many prompts as the vocabulary has entries begin with different ones; beyond, they differ by chance soon after.
    Take the warm-ups from the same list: `asks[n:]` beside `asks[:n]`. Lengths are whole numbers drawn evenly from
    length * (1 - range_ratio) to length * (1 + range_ratio), rounded and at least 1. A word counts as a token.
    With `ignore_eos` an answer may not end early.
    """
    if count < 0 or input_tokens < 1 or output_tokens < 1 or not 0 <= range_ratio < 1:
        raise RequestError(
            f"{count} random requests of {input_tokens} + {output_tokens} tokens, range ratio {range_ratio}: "
            "lengths are at least 1, the ratio is from 0 to below 1"
        )

    def make(number: int) -> Ask:
        rng = seeded(seed, ASKS, number)
        length, answer = (_length(rng, tokens, range_ratio) for tokens in (input_tokens, output_tokens))
        return _ask(prompts.write(rng, number, length), answer, ignore_eos, options)

    prompts = _Prompts(vocabulary, seed)
    return Made(count, make)


def logged_asks(
    log: Log,
    *,
    warmups: int = 0,
    vocabulary: Vocabulary = WORDS,
    seed: int = 0,
    ignore_eos: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Made[Ask]:
    """A log's requests: its texts where it has them; else random prompts of its lengths, where equal blocks are equal.

    Equal ids stand for equal blocks of 512 tokens, so that prefixes are shared as they were when the log was taken.
    After the log's come `warmups` more, of the first ones' lengths, whose random prompts share nothing with it.
    """

    def make(number: int) -> Ask:
        request = log.requests[number % len(log.requests)]
        warmup = number >= len(log.requests)
        if request.text is not None and not warmup:
            prompt: str | list[int] = request.text
        elif request.blocks is not None and not warmup:
            blocks = [seeded(seed, BLOCKS, one).integers(len(vocabulary), size=BLOCK_TOKENS) for one in request.blocks]
            prompt = prompts.spell(np.concatenate(blocks)[: request.input_tokens].tolist())
        else:
            prompt = prompts.write(seeded(seed, ASKS, number), number, request.input_tokens)
        return _ask(prompt, request.output_tokens, ignore_eos, options)

    prompts = _Prompts(vocabulary, seed)
    return Made(len(log.requests) + warmups, make)


def seeded(seed: int, *purpose: int) -> np.random.Generator:
    """A generator of its own for each purpose, so that no draw depends on how many came before."""
    if seed < 0:
        raise RequestError(f"seed {seed}: it must not be negative")
    return np.random.default_rng([seed, *purpose])


class _Prompts:
    """Random prompts over a vocabulary, numbered; neighbours in number begin with different entries."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        if not vocabulary:
            raise RequestError("an empty vocabulary makes no prompt")
        self._vocabulary = vocabulary
        self._firsts = seeded(seed, FIRSTS).permutation(len(vocabulary)).tolist()

    def write(self, rng: np.random.Generator, number: int, length: int) -> str | list[int]:
        picks = rng.integers(len(self._vocabulary), size=length).tolist()
        picks[0] = self._firsts[number % len(self._firsts)]
        return self.spell(picks)

    def spell(self, picks: Sequence[int]) -> str | list[int]:
        entries = [self._vocabulary[pick] for pick in picks]
        if isinstance(self._vocabulary[0], str):
            return " ".join(map(str, entries))
        return [int(entry) for entry in entries]


def _ask(prompt: str | list[int], max_tokens: int, ignore_eos: bool, options: Mapping[str, Any] | None) -> Ask:
    return Ask(prompt, max_tokens, max_tokens if ignore_eos else None, ignore_eos, options or {})


def _length(rng: np.random.Generator, tokens: int, ratio: float) -> int:
    return int(rng.integers(max(1, round(tokens * (1 - ratio))), round(tokens * (1 + ratio)), endpoint=True))
