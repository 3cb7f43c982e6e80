"""What a request may ask for. Everything that reaches the scheduler has passed here."""

import reprlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phaseline.engine.types import Grammar, Request, SamplingParams
from phaseline.errors import CapacityError, RequestError

_INT32 = 2**31 - 1
_STOP_STRINGS = 16


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers from `low` to `high`, both allowed unless `above` excludes the lower end; so neither NaN nor infinity."""

    low: float
    high: float
    whole: bool = False
    above: bool = False
    optional: bool = False

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.optional
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        kind = "an integer" if self.whole else "a number"
        low = f"above {self.low}" if self.above else f"at least {self.low}"
        return f"{kind} {low} and at most {self.high}" + (", or None" if self.optional else "")


RANGES: Mapping[str, _Range] = {
    "max_tokens": _Range(0, _INT32, whole=True),
    "min_tokens": _Range(0, _INT32, whole=True),
    "temperature": _Range(0, 1000),
    "top_k": _Range(0, _INT32, whole=True),
    "top_p": _Range(0, 1, above=True),
    "min_p": _Range(0, 1),
    "repetition_penalty": _Range(0, 1000, above=True),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "seed": _Range(0, 2**64 - 1, whole=True, optional=True),
    "n": _Range(1, 128, whole=True),
    "logprobs": _Range(0, 20, whole=True, optional=True),
    "prompt_logprobs": _Range(0, 20, whole=True, optional=True),
}
_PRIORITY = _Range(-_INT32, _INT32, whole=True)
# Characters of a grammar's text. The longest takes two seconds to compile at worst, a mask some 20 ms.
_GRAMMARS: Mapping[str, int] = {
    "json_object": 0,
    "json_schema": 1 << 16,
    "regex": 1 << 12,
    "choice": 1 << 16,
    "lark": 1 << 16,
}
_BIAS = _Range(-100, 100)  # no infinities: -100 bans a token in practice, and a sum stays finite


def validate(request: Request, *, vocab: int, context: int) -> None:
    """Refuse a request that no engine with `vocab` token ids and `context` positions could serve as asked.

    Raises RequestError that names the field, its value and what is accepted; CapacityError if the prompt is too long.
    """
    _require(isinstance(request.id, str) and request.id != "", "id", request.id, "a string that is not empty")
    _require(isinstance(request.salt, bytes), "salt", request.salt, "bytes")
    _require(_PRIORITY.accepts(request.priority), "priority", request.priority, str(_PRIORITY))
    _require(isinstance(request.progress, bool), "progress", request.progress, "True or False")
    _validate_ids("prompt", request.prompt, vocab)
    _require(len(request.prompt) > 0, "prompt", request.prompt, "at least one token id")
    validate_params(request.params, vocab=vocab)
    check_length(request, context, "the context")


def check_id(request_id: str, live: Container[str]) -> None:
    """Raise RequestError if a live request has this id."""
    if request_id in live:
        raise RequestError(f"request id {request_id!r} is in use by a live request; ids must be unique")


def check_length(request: Request, limit: int, holder: str) -> None:
    """Raise CapacityError unless `limit` positions hold the prompt and, if any token is asked for, one more."""
    length = len(request.prompt)
    check_room(length, request.params.max_tokens, limit, f"prompt of {length} tokens", holder)


def check_room(length: int, max_tokens: int, limit: int, prompt: str, holder: str) -> None:
    """As `check_length`, for `length` tokens that the message calls `prompt`."""
    most = limit - (max_tokens > 0)
    if length > most:
        raise CapacityError(
            f"{prompt} with max_tokens = {max_tokens}: {holder} holds {limit} tokens, "
            f"so a prompt may have at most {most}" + (" to leave room for one generated" if max_tokens else "")
        )


def validate_params(params: SamplingParams, *, vocab: int) -> None:
    """Refuse settings that no engine with `vocab` token ids could follow; RequestError names the field."""
    _require(isinstance(params, SamplingParams), "params", params, "SamplingParams")
    for name, accepted in RANGES.items():
        value = getattr(params, name)
        if not accepted.accepts(value):
            raise _refusal(name, value, str(accepted))
    at_most = f"at most max_tokens = {params.max_tokens}"
    _require(params.min_tokens <= params.max_tokens, "min_tokens", params.min_tokens, at_most)
    _require(isinstance(params.ignore_eos, bool), "ignore_eos", params.ignore_eos, "True or False")
    _validate_ids("stop_ids", params.stop_ids, vocab)
    _validate_ids("spelt_ids", params.spelt_ids, vocab)
    _require(
        isinstance(params.logit_bias, Mapping), "logit_bias", params.logit_bias, "a mapping of token ids to numbers"
    )
    _validate_ids("logit_bias", list(params.logit_bias), vocab)
    _validate_biases(params.logit_bias)
    stop = params.stop
    _require(
        _is_list(stop) and len(stop) <= _STOP_STRINGS and all(isinstance(s, str) and s for s in stop),
        "stop",
        stop,
        f"a list of at most {_STOP_STRINGS} strings, none empty",
    )
    if params.grammar is not None:
        _validate_grammar(params.grammar)


def _validate_grammar(grammar: Grammar) -> None:
    _require(isinstance(grammar, Grammar), "grammar", grammar, "a Grammar or None")
    kinds = ", ".join(_GRAMMARS)
    _require(
        isinstance(grammar.kind, str) and grammar.kind in _GRAMMARS,
        "grammar.kind",
        grammar.kind,
        f"one of {kinds}",
    )
    most = _GRAMMARS[grammar.kind]
    accepted = f"text of at most {most} characters for {grammar.kind}"
    _require(isinstance(grammar.text, str) and len(grammar.text) <= most, "grammar.text", grammar.text, accepted)


def _validate_ids(name: str, ids: Sequence[int], vocab: int) -> None:
    _require(_is_list(ids), name, ids, "a list of token ids")
    if ids and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab:
        return  # sooner than by the loop: a prompt may be long, and streams wait meanwhile
    for position, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab:  # exactly int: neither a bool nor an array's scalar
            raise RequestError(f"{name}[{position}] = {reprlib.repr(token)}: must be an int from 0 to {vocab - 1}")


def _validate_biases(biases: Mapping[int, float]) -> None:
    low, high, values = _BIAS.low, _BIAS.high, biases.values()
    if set(map(type, values)) <= {int, float} and all(low <= value <= high for value in values):
        return  # sooner than by the loop: there may be one for each token
    for token, bias in biases.items():
        if not _BIAS.accepts(bias):
            raise _refusal(f"logit_bias[{token}]", bias, str(_BIAS))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _require(holds: bool, name: str, value: Any, accepted: str) -> None:
    if not holds:
        raise _refusal(name, value, accepted)


def _refusal(name: str, value: Any, accepted: str) -> RequestError:
    return RequestError(f"{name} = {reprlib.repr(value)}: must be {accepted}")
