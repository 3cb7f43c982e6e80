"""Constraint: which tokens a grammar lets a completion say next.

Grammars are llguidance's: it walks the vocabulary's bytes, so that a token that holds half a character or several
words at once is judged like any other. A control token spells nothing and is allowed nowhere, but that a text may end
with one of the tokenizer's end tokens exactly where the grammar may. What a grammar costs is bounded: its text (by
`engine.validate`), the members of each object in a schema, and, by llguidance, its parser and lexer; what goes beyond
fails that request alone.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from phaseline.engine.types import Grammar, SamplingParams
from phaseline.errors import RequestError
from phaseline.files.tokenizer import Tokenizer

_MEMBERS = 400  # of an object in a schema; llguidance compiles n optional ones in n^2 and follows fewer than 500
_STACK = 128 << 20  # bytes; a chain of references of the longest text nests by some 10 MB. Untouched pages cost nothing
_SPACE = r"[\x20\x0A\x0D\x09]{1,40}"  # between JSON's tokens: enough to indent, too little to get lost in
_SAID = 300  # characters of what the library says


class Grammars:
    """Compiles grammars for one tokenizer. Building it takes about 5 microseconds a token; done once per engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        spelling = _Spelling(tokenizer)
        self._tokenizer = LLTokenizer(TokenizerWrapper(spelling), eos_token=sorted(tokenizer.eos_ids) or None)
        spelling.fallback = self._tokenizer.greedy_tokenize
        self._eos = tokenizer.eos_ids
        self._lock = threading.Lock()

    def constraint(self, grammar: Grammar, params: SamplingParams) -> "Constraint":
        """At the grammar's start. RequestError if it is malformed, unsupported, too complex, or matches nothing."""
        try:
            definition = _DEFINITIONS[grammar.kind](grammar.text)
        except (ValueError, RecursionError) as error:
            raise _refusal(grammar.kind, str(error)) from None
        matcher = self._compiled(definition)
        if matcher.is_error():
            raise _refusal(grammar.kind, matcher.get_error())
        early = self._bits({*self._eos, *params.stop_ids}) if params.min_tokens else None
        late = self._bits(self._eos) if params.ignore_eos else None
        return Constraint(grammar.kind, matcher, self._bits(()), early, late, params.min_tokens)

    def _compiled(self, definition: str) -> LLMatcher:
        """A matcher that knows its first mask, or is in error. Compiled in a thread of its own for the deep stack."""
        with self._lock:
            usual = threading.stack_size(_STACK)
            try:
                pool = ThreadPoolExecutor(1)
                compiled = pool.submit(self._compile, definition)
            finally:
                threading.stack_size(usual)
        with pool:
            return compiled.result()

    def _compile(self, definition: str) -> LLMatcher:
        limits = LLParserLimits(
            initial_lexer_fuel=200_000, step_lexer_fuel=50_000, max_lexer_states=100_000, verbose_errors=False
        )
        matcher = LLMatcher(self._tokenizer, definition, log_level=0, limits=limits)
        matcher.compute_bitmask()
        return matcher

    def _bits(self, ids: Collection[int]) -> NDArray[np.uint32]:
        """A set of ids as a mask: id i is bit i % 32 of word i // 32."""
        bits = np.zeros(-(-self._tokenizer.vocab_size // 32) * 32, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


class Constraint:
    """How far one completion has come in its grammar. `finished`: the text is complete and nothing may follow."""

    def __init__(
        self,
        kind: str,
        matcher: LLMatcher,
        mask: NDArray[np.uint32],
        early: NDArray[np.uint32] | None,
        late: NDArray[np.uint32] | None,
        min_tokens: int,
    ) -> None:
        """`mask` is written over. `early`: tokens kept out before min_tokens, `late`: after; None: none. A token that
        the grammar leaves no other for is never kept out."""
        self.finished = False
        self._kind, self._matcher, self._mask = kind, matcher, mask
        self._early, self._late, self._min_tokens, self._count = early, late, min_tokens, 0

    def fork(self) -> "Constraint":
        """Another that has come as far."""
        other = Constraint(
            self._kind, self._matcher.deep_copy(), self._mask.copy(), self._early, self._late, self._min_tokens
        )
        other.finished, other._count = self.finished, self._count
        return other

    def mask(self) -> NDArray[np.uint32]:
        """The tokens that may come next, as bits (see Grammars); valid until the next call.

        RequestError if the grammar has become too complex to follow, or the vocabulary can't spell what it wants.
        """
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            raise _refusal(self._kind, self._matcher.get_error())
        kept_out = self._early if self._count < self._min_tokens else self._late
        if kept_out is not None:
            rest = self._mask & ~kept_out
            if rest.any():
                return rest
        return self._mask

    def advance(self, token: int) -> None:
        """`token`, of the mask, was chosen. What goes wrong here `mask` reports."""
        self._count += 1
        self._matcher.consume_token(token)
        self.finished = self._matcher.is_stopped() and not self._matcher.is_error()


class _Spelling:
    """A tokenizer in llguidance's terms: the bytes of each token, and text to ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ends, ids = tokenizer.eos_ids, range(tokenizer.vocab_size)
        self._spelt = [b"" if id in ends else tokenizer.token_bytes(id) for id in ids]
        # A token that spells nothing has its name, by which a Lark grammar may ask for it.
        self.tokens = [spelt or tokenizer.token_text(id).encode() for id, spelt in enumerate(self._spelt)]
        self.special_token_ids = [id for id, spelt in enumerate(self._spelt) if not spelt]
        self.eos_token_id, self.bos_token_id = tokenizer.eos_id, tokenizer.bos_id
        self.fallback: Callable[[str], list[int]] = lambda text: []

    def __call__(self, text: str) -> list[int]:
        """Ids that spell `text` and no more; as the model's own tokenizer has them inside a text if it can be had."""
        wanted = text.encode()
        for before in ("", "\n"):  # after a line break no space is put before a text
            ids = self._tokenizer.encode(before + text, bos=False, special=False)
            while before and ids and not self._spelt[ids.pop(0)].endswith(b"\n"):
                pass
            if b"".join(self._spelt[id] for id in ids) == wanted:
                return ids
        ids = self.fallback(text)
        return ids if b"".join(self._spelt[id] for id in ids) == wanted else []


def _refusal(kind: str, reason: str) -> RequestError:
    said = " ".join(reason.split("\n<")[0].split())
    if said == "NoExtensionBias":
        said = "nothing that this model's vocabulary can spell matches it"
    return RequestError(f"grammar {kind}: {said if len(said) <= _SAID else said[:_SAID] + ' ...'}")


def _json_schema(text: str) -> str:
    schema = json.loads(text, object_pairs_hook=_members, parse_constant=_no_number)
    if not isinstance(schema, dict):
        raise ValueError("a schema must be a JSON object")
    plain = json.dumps(schema, allow_nan=False)  # as read here, whatever another reader makes of a key given twice
    return LLMatcher.grammar_from_json_schema(plain, defaults={"whitespace_pattern": _SPACE})


def _choice(text: str) -> str:
    strings = json.loads(text)
    if not isinstance(strings, list) or not strings or not all(isinstance(string, str) for string in strings):
        raise ValueError("the choices must be a JSON list of strings")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(s, ensure_ascii=False) for s in strings))


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MEMBERS:
        raise ValueError(f"an object of {len(pairs)} members; in a schema one may have at most {_MEMBERS}")
    return dict(pairs)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DEFINITIONS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "json_object": lambda text: _json_schema('{"type": "object"}'),
        "json_schema": _json_schema,
        "regex": LLMatcher.grammar_from_regex,
        "choice": _choice,
        "lark": LLMatcher.grammar_from_lark,
    }
)
