"""Requests of every kind that a server answers at once, and what each of their answers says."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from support.server import Answer, Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Said = dict[int, tuple[str, list[int], Any, str | None]]  # text, tokens, log-probabilities and end of each choice

_SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}}, "required": ["b"]}
_WAYS: Sequence[dict[str, Any]] = (  # how tokens are chosen
    {"temperature": 0},
    {"temperature": 0, "n": 2, "frequency_penalty": 0.5},
    {"seed": 5},
    {"seed": 6, "n": 3, "top_p": 0.9},
    {"seed": 7, "temperature": 1.5, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"seed": 8, "logit_bias": {"60": 5, "61": -100}, "stop_token_ids": [70, 71]},
    {"seed": 9, "stop": ["e", "th"], "min_tokens": 3},
    {"seed": 10, "response_format": {"type": "json_object", "schema": _SCHEMA}},
    {"seed": 11, "n": 2, "structured_outputs": {"regex": "[a-z]{20}( [0-9]{5})*"}},
)


@dataclass(frozen=True)
class Case:
    """A request whose answer is the same every time."""

    path: str
    body: dict[str, Any]

    def ask(self, server: Server, **more: Any) -> Said:
        """What is answered, to the body with these fields besides."""
        answer = server.ask(self.path, self.body | more)
        assert answer.status == 200, answer.body
        return said(answer, stream=bool(self.body.get("stream")))

    @classmethod
    def drawn(cls, rng: random.Random, *, prompt: int, tokens: int) -> "Case":
        """Any request, of a prompt of about `prompt` tokens at most: two of three begin as others do."""
        chat, way = rng.random() < 0.4, rng.choice(_WAYS)
        body = way | {"max_tokens": rng.randint(3, tokens), "stream": rng.random() < 0.5, "return_token_ids": True}
        if "response_format" not in body and "structured_outputs" not in body:
            body["ignore_eos"] = rng.random() < 0.8
        begin = rng.choice(["", *(f"{chr(97 + i)} tale of {'many words ' * (prompt // 15)}" for i in range(2))])
        text = begin + "".join(rng.choices("abcdefghij klmno", k=rng.randint(1, prompt // 4)))
        if rng.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3, "echo": rng.random() < 0.5}
        if chat:
            return cls(CHAT, body | {"messages": [{"role": "user", "content": text}]})
        as_ids = rng.random() < 0.5
        return cls(COMPLETIONS, body | {"prompt": [2 + ord(c) % 200 for c in text] if as_ids else text})


def said(answer: Answer, *, stream: bool) -> Said:
    """What an answer says, the same for a whole one as for its events joined."""
    choices: dict[int, list[Any]] = {}
    for choice in _choices(answer.events if stream else [answer.json]):
        message = choice.get("delta") or choice.get("message") or {}
        found = choices.setdefault(choice["index"], ["", [], [], None])
        found[0] += choice.get("text") or message.get("content") or ""
        found[1] += choice.get("token_ids") or []
        scores = choice.get("logprobs") or {}
        found[2] += scores.get("content") or list(zip(*scores.values(), strict=True))
        found[3] = choice["finish_reason"] or found[3]
    return {index: (text, ids, scores, reason) for index, (text, ids, scores, reason) in sorted(choices.items())}


def _choices(objects: Sequence[Any]) -> Iterator[Any]:
    for one in objects:
        assert "error" not in one, one
        yield from one["choices"]


def start(server: Server, path: str, body: Any) -> HTTPConnection:
    """A connection on which a request has been sent."""
    connection = server.connect()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def leave(server: Server, case: Case, after: int) -> None:
    """Ask, and go after so many bytes of the answer; as soon as it is asked if that is 0."""
    with closing(start(server, case.path, case.body)) as connection:
        if after:
            connection.getresponse().read(after)
