"""From deltas to choices: what an answer says of each step, in the shape of its endpoint.

A streamed answer sends what `piece` makes of each delta; a whole one joins the same pieces.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec import UNSET, Struct, UnsetType

from phaseline.engine.types import Delta
from phaseline.files.tokenizer import Tokenizer
from phaseline.files.tool_calls import ToolCall, ToolCallStream, ToolFormat
from phaseline.serve.door.objects import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    Function,
    Message,
    TextChoice,
    ToolCallPart,
)
from phaseline.serve.door.scores import LegacyScore, chat_logprobs, join_legacy

_T = TypeVar("_T")


class Growing(Protocol):
    """One choice of an answer, as it grows."""

    def piece(self, delta: Delta) -> Struct | None:
        """What to send now that `delta` has come; None if that is nothing."""

    def whole(self, deltas: Iterable[Delta]) -> Struct:
        """All deltas' pieces as one; the last has a finish reason."""

    def nothing(self) -> Struct:
        """A piece that says nothing, for a chunk that says something beside it."""

    @property
    def plain(self) -> bool:
        """Whether all further pieces but the last are a delta's text, as it is, in one and the same shape."""


class TextGrowing:
    """A choice of `/v1/completions`. `echo`: the prompt's text, to come before it; `ids`: with token ids."""

    def __init__(
        self, tokenizer: Tokenizer, index: int, prompt: list[int], *, echo: str | None, scored: bool, ids: bool
    ) -> None:
        self._index, self._prompt, self._echo, self._scored, self._ids = index, prompt, echo, scored, ids
        self._score = LegacyScore(tokenizer)
        self._first = True

    def piece(self, delta: Delta) -> TextChoice | None:
        choice = TextChoice(self._index, delta.text)
        if delta.finish_reason:
            choice.finish_reason = delta.finish_reason.value
        first, self._first = self._first, False
        scores = []
        if first and self._echo is not None:
            choice.text = self._echo + delta.text
            if self._scored:
                scores.append(self._score.prompt(self._prompt, delta.prompt_logprobs or (), self._echo))
        if self._scored:
            scores.append(self._score.generated(delta.logprobs))
            choice.logprobs = join_legacy(scores)
        if self._ids:
            choice.token_ids = list(delta.token_ids)
            choice.prompt_token_ids = self._prompt if first else UNSET
        return choice if choice.text or choice.finish_reason or self._scored or self._ids else None

    @property
    def plain(self) -> bool:
        return not (self._first or self._scored or self._ids)

    def nothing(self) -> TextChoice:
        return TextChoice(self._index, "")

    def whole(self, deltas: Iterable[Delta]) -> TextChoice:
        pieces = [piece for delta in deltas if (piece := self.piece(delta))]
        return TextChoice(
            self._index,
            "".join(p.text for p in pieces),
            join_legacy([p.logprobs for p in pieces if p.logprobs]) if self._scored else None,
            pieces[-1].finish_reason,
            self._prompt if self._ids else UNSET,
            _joined([p.token_ids for p in pieces]),
        )


class ChatGrowing:
    """A choice of `/v1/chat/completions`. `format`: that of the calls in its text, None if it may make none;
    `parallel`: whether it may make several.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        index: int,
        *,
        format: ToolFormat | None,
        parallel: bool,
        scored: bool,
        ids: bool,
    ) -> None:
        self._tokenizer, self._index, self._scored, self._ids = tokenizer, index, scored, ids
        self._format, self._stream = format, ToolCallStream(format)
        self._most = 1 << 20 if parallel else 1
        self._calls = 0
        self._first = True

    def piece(self, delta: Delta) -> ChatChunkChoice | None:
        text, calls = self._stream.push(delta.text) if delta.text else ("", [])
        reason = delta.finish_reason.value if delta.finish_reason else None
        if reason:
            rest, more = self._stream.finish()
            text, calls = text + rest, calls + more
        said = ChatDelta()
        if parts := self._parts(calls):
            said.tool_calls = parts
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        if text:
            said.content = text
        if not (text or parts or reason or self._scored or self._ids):
            return None
        if self._first:
            self._first, said.role = False, "assistant"
            said.content = text  # clients take the first chunk's content for a string
        choice = ChatChunkChoice(self._index, said, finish_reason=reason)
        if self._scored and delta.logprobs:
            choice.logprobs = chat_logprobs(self._tokenizer, delta.logprobs)
        if self._ids:
            choice.token_ids = list(delta.token_ids)
        return choice

    @property
    def plain(self) -> bool:
        return not (self._first or self._scored or self._ids or self._format)

    def nothing(self) -> ChatChunkChoice:
        return ChatChunkChoice(self._index, ChatDelta())

    def whole(self, deltas: Iterable[Delta]) -> ChatChoice:
        pieces = [piece for delta in deltas if (piece := self.piece(delta))]
        text = "".join(p.delta.content or "" for p in pieces)
        calls = _joined([p.delta.tool_calls for p in pieces])
        if calls:
            for call in calls:
                call.index = UNSET
        scores = [entry for p in pieces if p.logprobs for entry in p.logprobs.content]
        return ChatChoice(
            self._index,
            Message(text if text or not calls else None, calls),
            ChatLogprobs(scores) if self._scored else None,
            pieces[-1].finish_reason,
            _joined([p.token_ids for p in pieces]),
        )

    def _parts(self, calls: Sequence[ToolCall]) -> list[ToolCallPart]:
        parts = []
        for call in calls[: self._most - self._calls]:
            function = Function(call.name, call.arguments)
            parts.append(ToolCallPart(self._calls, f"call_{secrets.token_hex(12)}", function))
            self._calls += 1
        return parts


def _joined(lists: Sequence[list[_T] | UnsetType]) -> list[_T] | UnsetType:
    """One list of those that are there; UNSET if there is none."""
    there = [part for part in lists if part is not UNSET]
    return [value for part in there for value in part] if there else UNSET
