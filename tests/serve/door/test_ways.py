"""Events of plain texts are spelt apart from all others: nobody is to see a difference."""

from typing import Any

import pytest

from support.server import Server

ANSWER = {"seed": 5, "max_tokens": 40, "temperature": 1.0, "ignore_eos": True, "stream": True}
USAGE = {"include_usage": True}
_OTHER = ("id", "created", "timings", "token_ids", "prompt_token_ids")


def shown(server: Server, path: str, body: dict[str, Any]) -> list[list[Any]]:
    """What a stream said of each choice, without what no two answers share, or what was asked for besides."""
    choices: dict[int, list[Any]] = {}
    for event in server.ask(path, body).events:
        told = {name: event[name] for name in event if name not in _OTHER}
        for choice in event["choices"]:
            for name in _OTHER:
                choice.pop(name, None)
            choice.get("delta", {}).pop("role", None)  # in the first one, which may have ids alone
            if choice["finish_reason"] or choice.get("text") or choice.get("delta", {}).get("content"):
                choices.setdefault(choice["index"], []).append(told)
        if not event["choices"]:
            choices.setdefault(-1, []).append(told)
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "one"}),
        ("/v1/completions", {"prompt": "one", "stream_options": USAGE}),
        ("/v1/completions", {"prompt": "one", "stream_options": USAGE | {"continuous_usage_stats": True}}),
        ("/v1/completions", {"prompt": ["one", 'the "other"'], "n": 2, "echo": True, "stream_options": USAGE}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}], "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}], "stream_options": USAGE}),
    ],
)
def test_a_plain_stream_looks_like_any_other(server: Server, path: str, asked: dict[str, Any]) -> None:
    plain, spelt = (shown(server, path, {**ANSWER, **asked, "return_token_ids": ids}) for ids in (False, True))
    assert plain == spelt
    assert len(plain[-1]) > 10
