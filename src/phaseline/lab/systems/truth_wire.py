"""The bytes of a truth server: chunks of the OpenAI API, spelled as its script demands. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phaseline.lab.systems.truth_script import Burst, Wire

_FIELDS = {"text": "content", "reasoning": "reasoning_content"}


class Speaker:
    """Spells one answer. `chat`: which API; `usage_asked`: the request had `include_usage`."""

    def __init__(self, wire: Wire, *, model: str, chat: bool, usage_asked: bool, prompt_tokens: int) -> None:
        self._wire, self._model, self._chat, self._usage_asked = wire, model, chat, usage_asked
        self._prompt_tokens = prompt_tokens
        self.tokens = 0

    def role(self) -> bytes:
        return self._event(self._chunk([self._choice({"role": "assistant", "content": ""})]))

    def burst(self, burst: Burst) -> bytes:
        """One event with all its tokens."""
        self.tokens += burst.tokens
        chunk = self._chunk([self._counted(self._choice(self._delta(burst)), burst.tokens)])
        if self._wire.counts == "usage":
            chunk["usage"] = self._usage()
        return self._event(chunk)

    def closing(self) -> list[bytes]:
        """The events after the last token."""
        wire, events = self._wire, []
        if wire.finish_reason is not None:
            last = self._chunk([self._choice({}) | {"finish_reason": wire.finish_reason}])
            if wire.usage == "last":
                last["usage"] = self._usage()
            if wire.timings:
                last["timings"] = timings(self._prompt_tokens, self.tokens)
            events.append(self._event(last))
        if self._usage_asked and wire.usage in ("empty", "null", "missing"):
            chunk = self._chunk([]) | {"usage": self._usage()}
            if wire.usage == "null":
                chunk["choices"] = None
            elif wire.usage == "missing":
                del chunk["choices"]
            events.append(self._event(chunk))
        if wire.done:
            events.append(self._spell("[DONE]"))
        if events and not wire.final_blank:
            events[-1] = events[-1].removesuffix(2 * wire.newline.encode())
        return events

    def whole(self, bursts: Sequence[Burst]) -> bytes:
        """The answer to a request that does not stream."""
        self.tokens = sum(burst.tokens for burst in bursts)
        said: dict[str, Any] = {}
        for burst in bursts:
            for name, value in self._delta(burst).items():
                said[name] = said[name] + value if name in said else value
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._wire.finish_reason}
        choice |= {"message": {"role": "assistant", **said}} if self._chat else {"text": said.get("content", "")}
        answer = self._chunk([self._counted(choice, self.tokens)])
        if self._wire.usage != "none":
            answer["usage"] = self._usage()
        return json.dumps(answer).encode()

    def error(self) -> bytes:
        return self._event({"error": {"message": "scripted error", "type": "server_error", "code": 500}})

    def _delta(self, burst: Burst) -> dict[str, Any]:
        text = self._wire.token_text * burst.tokens
        if burst.channel == "tool":
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return {_FIELDS[burst.channel]: text}

    def _choice(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        said = {"delta": dict(delta)} if self._chat else {"text": delta.get("content", "")}
        return {"index": 0, **said, "finish_reason": None}

    def _counted(self, choice: dict[str, Any], tokens: int) -> dict[str, Any]:
        if self._wire.counts == "token_ids":
            choice["token_ids"] = [7] * tokens
        elif self._wire.counts == "logprobs" and self._chat:
            choice["logprobs"] = {"content": [{"token": self._wire.token_text, "logprob": -0.5}] * tokens}
        elif self._wire.counts == "logprobs":
            choice["logprobs"] = {"tokens": [self._wire.token_text] * tokens, "token_logprobs": [-0.5] * tokens}
        return choice

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {"id": "truth", "object": kind, "model": self._model, "choices": choices}

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": self._prompt_tokens, "completion_tokens": self.tokens}
        if self._wire.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self._wire.cached_tokens}
        return usage

    def _event(self, chunk: Mapping[str, Any]) -> bytes:
        return self._spell(json.dumps(chunk, ensure_ascii=False, indent=1 if self._wire.pretty else None))

    def _spell(self, data: str) -> bytes:
        wire = self._wire
        lines = [": a comment"] if wire.comments else []
        lines += ["event: message"] if wire.names else []
        lines += [("data: " if wire.space else "data:") + line for line in data.split("\n")]
        return "".join(line + wire.newline for line in [*lines, ""]).encode()


def facts(wire: Wire, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    """What a client learns from an answer that ends well, if it asks for everything."""
    told: dict[str, Any] = {"finish_reason": wire.finish_reason}
    if wire.usage not in ("none", "refused"):
        told |= {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "cached_tokens": wire.cached_tokens}
    if wire.timings:
        told["timings"] = timings(prompt_tokens, output_tokens)
    return {name: value for name, value in told.items() if value is not None}


def timings(prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
    """llama.cpp's own, with times of no meaning."""
    return {"prompt_n": prompt_tokens, "prompt_ms": 1.0, "predicted_n": output_tokens, "predicted_ms": 1.0}
