"""From a body to what the engine is asked: settings, limits, salts. What would change an answer and can't be done is
refused here by name.
"""

from hashlib import blake2b
from typing import TypeVar

from phaseline.engine.types import SamplingParams
from phaseline.engine.validate import RANGES
from phaseline.serve.door.grammars import grammar_of
from phaseline.serve.door.problems import refused
from phaseline.serve.door.protocol import ChatBody, CompletionBody, Generation

_COMPLETION_TOKENS = 16  # what OpenAI and vLLM generate where no number is given
_INT32 = 1 << 31
_MOST_ALTERNATIVES = int(RANGES["logprobs"].high)
_T = TypeVar("_T")


def completion_params(body: CompletionBody) -> SamplingParams:
    """Settings of `/v1/completions`."""
    if body.suffix:
        raise refused("suffix", "insertion is not supported; send the text before it as the prompt")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise refused("best_of", "ranking completions is not supported; ask for n and choose among them")
    scored = body.logprobs if body.echo else None
    limit = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _params(body, max_tokens=limit, logprobs=body.logprobs, prompt_logprobs=scored)


def chat_params(body: ChatBody, *, context: int) -> SamplingParams:
    """Settings of `/v1/chat/completions`; without a limit an answer may fill the `context`."""
    if body.top_logprobs and not body.logprobs:
        raise refused("top_logprobs", "needs logprobs to be true")
    if not 0 <= (body.top_logprobs or 0) <= _MOST_ALTERNATIVES:
        raise refused("top_logprobs", f"must be at least 0 and at most {_MOST_ALTERNATIVES}")
    for name, value in (("functions", body.functions), ("chat_template", body.chat_template)):
        if value is not None:
            raise refused(name, "not supported; " + _INSTEAD[name])
    if body.continue_final_message:
        raise refused("continue_final_message", "not supported; /v1/completions continues any text")
    if body.modalities not in (None, ["text"]):
        raise refused("modalities", 'only ["text"] is supported')
    _, limit = chat_limit(body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _params(body, max_tokens=context if limit is None else limit, logprobs=logprobs)


def chat_limit(body: ChatBody) -> tuple[str, int | None]:
    """The field that says how many tokens an answer may have at most, and what it says."""
    if body.max_completion_tokens is None:
        return "max_tokens", body.max_tokens
    return "max_completion_tokens", body.max_completion_tokens


def salt(key: str | None, cache_salt: str | None) -> bytes:
    """Whose prefixes a request may share: those of its API key and its own `cache_salt`; b"" without either."""
    if key is None and cache_salt is None:
        return b""
    owner = b"" if key is None else blake2b(key.encode()).digest()
    return blake2b((cache_salt or "").encode(), key=owner).digest()


def priority(body: Generation) -> int:
    """Lower goes first; 0 where it is absent."""
    value = body.priority or 0
    if not -_INT32 <= value < _INT32:
        raise refused("priority", f"must be an integer of 32 bits, not {value}")
    return value


_INSTEAD = {
    "functions": "describe functions in tools",
    "chat_template": "conversations are spelt by the model's own template alone",
}
_CALLED_HERE = {  # what vLLM (formerly) and llama.cpp call what has another name here
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "grammar": "structured_outputs.grammar",
    "json_schema": "response_format",
    "n_predict": "max_tokens",
}


def _params(
    body: Generation, *, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None = None
) -> SamplingParams:
    if body.use_beam_search:
        raise refused("use_beam_search", "beam search is not supported")
    for name, here in _CALLED_HERE.items():
        if getattr(body, name) is not None:
            raise refused(name, f"not supported; it is called {here} here")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        temperature=_or(body.temperature, 1.0),
        top_k=0 if body.top_k == -1 else _or(body.top_k, 0),  # vLLM's -1: off
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_biases(body.logit_bias or {}),
        seed=_seed(body.seed),
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or (),
        stop_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
        n=_or(body.n, 1),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar_of(body),
    )


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _seed(seed: int | None) -> int | None:
    """Seeds below zero stand for those of 64 bits that they are the two's complement of; llama.cpp's -1 for any."""
    if seed is None or seed == -1:
        return None
    return seed + 2**64 if -(2**63) <= seed < 0 else seed


def _biases(given: dict[str, float]) -> dict[int, float]:
    """JSON spells the ids as strings."""
    biases = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 11):
            raise refused("logit_bias", f"{key[:40]!r} is no token id")
        biases[int(key)] = bias
    return biases
