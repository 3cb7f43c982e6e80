"""The engine's vocabulary: what a caller asks for and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import msgspec


class FinishReason(Enum):
    STOP = "stop"  # an end-of-sequence token, a stop id or a stop string
    LENGTH = "length"  # max_tokens or the context limit
    ABORT = "abort"  # cancelled by the caller


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a generated text must be, from its first character to its last.

    `text`, by kind: json_object: nothing. json_schema: a JSON Schema. regex: an expression that the whole text matches.
    choice: a JSON list of strings, one of which is the text. lark: a grammar in llguidance's dialect of Lark.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "lark"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Validated by `engine.validate`; nothing here reads a model.

    temperature 0 is greedy (ties go to the lower id). Penalties count generated tokens
    (repetition also the prompt's), as vLLM does. Nothing ends a text before min_tokens: end tokens are not sampled, and
    stop strings are not looked for. A grammar goes before all: where it lets nothing follow, the text ends, also before
    min_tokens and with ignore_eos; where it lets a text end or go on, these two let it go on.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: drawn once when the request is submitted
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    spelt_ids: Sequence[int] = ()  # control tokens that are part of the text, spelt out; others leave no trace in it
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None  # number of alternatives per generated token; 0: the chosen one's only
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt (token ids) and what to do with it. `id` must be unique among live requests."""

    id: str
    prompt: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    salt: bytes = b""  # prefix pages are shared only among equal salts
    priority: int = 0  # lower goes first
    progress: bool = False  # wants to be told how far its prompt is read


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token and its best alternatives, most likely first (natural log)."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one stream. `index` counts the n completions of a request."""

    request_id: str
    index: int
    token_ids: Sequence[int]
    text: str  # may be empty while half a character or a possible stop string is held back
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None  # with the first delta only
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0  # prompt tokens served from the prefix cache


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a request's prompt was read after a step: `done` of `total` tokens, `cached` of them without work."""

    request_id: str
    done: int
    total: int
    cached: int
    seconds: float  # since the step began that read its first token
