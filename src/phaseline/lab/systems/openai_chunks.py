"""What an OpenAI-compatible server says, chunk by chunk or in one answer, as pieces. Pure."""

from collections.abc import Mapping
from typing import Any, TypeVar

from phaseline.lab.systems.base import Piece
from phaseline.lab.systems.event_stream import count, nonsense, parse
from phaseline.lab.systems.sse import ServerEvent
from phaseline.lab.trace import META

T = TypeVar("T")

# channel: the fields that carry it, in the spellings of the common servers; some send two of them alike
_CHANNELS = {"reasoning": ("reasoning_content", "reasoning"), "text": ("content", "refusal")}


class ChunkReader:
    """Reads the chunks of one answer, chat or completion, in order.

    A chunk's number of tokens is known where the server counts on in every chunk (`usage`, or llama.cpp's `timings`)
    or where the chunk lists ids or log-probabilities. It is never inferred from the number of chunks.
    """

    def __init__(self) -> None:
        self.finished = False
        self.closed = False
        self._counted: int | None = 0  # tokens so far, by the server's own running count; None once a chunk had none

    def read(self, event: ServerEvent) -> list[Piece]:
        """The pieces in an event of the stream. Raises StreamFault for an error in it, or for garbage."""
        data = event.data.strip()
        if data == "[DONE]":
            self.finished = self.closed = True
            return []
        return self.pieces(parse(event)) if data else []

    def pieces(self, chunk: Mapping[str, Any]) -> list[Piece]:
        """The pieces in a chunk, or in a whole answer."""
        usage = _typed(chunk.get("usage"), dict) or {}
        timings = _typed(chunk.get("timings"), dict) or {}
        said: list[Piece] = []
        facts: dict[str, Any] = {}
        for choice in _typed(chunk.get("choices"), list) or []:
            said += _choice(_typed(choice, dict) or {})
            if reason := _typed(choice.get("finish_reason"), str):
                facts["finish_reason"] = reason
                self.finished = True
        if said:
            said = self._counting(said, count(usage.get("completion_tokens", timings.get("predicted_n"))))
        cached = _typed(usage.get("prompt_tokens_details"), dict) or {}
        facts["prompt_tokens"] = count(usage.get("prompt_tokens"))
        facts["cached_tokens"] = count(cached.get("cached_tokens"))
        facts["output_tokens"] = count(usage.get("completion_tokens"))
        facts["timings"] = timings or None
        facts = {name: value for name, value in facts.items() if value is not None}
        return [*said, Piece(META, facts=facts)] if facts else said

    def _counting(self, said: list[Piece], total: int | None) -> list[Piece]:
        """Fill in what a running count tells. It must be there from the start and rise, or it is none: some servers
        send a total with the last text only, or zeros with every chunk."""
        before, self._counted = self._counted, None
        if before is None or total is None or total <= before:
            return said
        self._counted = total
        return [Piece(piece.channel, total - before if len(said) == 1 else None, piece.text) for piece in said]


def _choice(choice: Mapping[str, Any]) -> list[Piece]:
    body = _typed(choice.get("delta", choice.get("message")), dict) or {"content": choice.get("text")}
    said = []
    for channel, fields in _CHANNELS.items():
        if text := next(filter(None, (_typed(body.get(field), str) for field in fields)), None):
            said.append((channel, text))
    if calls := _typed(body.get("tool_calls"), list):
        functions = [_typed((_typed(call, dict) or {}).get("function"), dict) or {} for call in calls]
        if text := "".join(_typed(f.get(field), str) or "" for f in functions for field in ("name", "arguments")):
            said.append(("tool", text))
    tokens = _listed(choice)
    if not said and tokens:  # a token without text of its own, such as half a character
        said.append(("text", ""))
    known = tokens if len(said) == 1 else None  # how two channels share them is not told
    return [Piece(channel, known, text) for channel, text in said]


def _listed(choice: Mapping[str, Any]) -> int | None:
    ids = _typed(choice.get("token_ids"), list)
    if ids is not None:
        return len(ids)
    logprobs = _typed(choice.get("logprobs"), dict) or {}
    for field in ("content", "tokens"):
        if listed := _typed(logprobs.get(field), list):
            return len(listed)
    return None


def _typed(value: Any, kind: type[T]) -> T | None:
    """The value, which may be missing. Raises StreamFault if it is something else."""
    if value is not None and not isinstance(value, kind):
        raise nonsense(value)
    return value
