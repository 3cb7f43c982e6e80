"""Whose words a template has a place for: OpenAI's roles, and those that make a difference to what it spells.

Most templates leave out what a role says that they don't know, and nothing in the answer would tell.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from phaseline.errors import RequestError
from phaseline.serve.door.problems import refused

Messages = Sequence[Mapping[str, Any]]

_OPENAI = ("system", "developer", "user", "assistant", "tool", "function")
_LONGEST = 64  # characters of a role
_MOST_NEW = 16  # roles of a conversation that are yet to be tried, each of which costs as much as to spell it
_MOST_KNOWN = 256


class Roles:
    """The roles of one template, as far as they were asked for. Threads may share it."""

    def __init__(self) -> None:
        self._known = set(_OPENAI)

    def spell(self, messages: Messages, render: Callable[[Messages], str]) -> str:
        """What `render` makes of messages, each with a role and a content. Problem names a role that it leaves out."""
        new: dict[str, str] = {}  # where each first stands
        for n, message in enumerate(messages):
            if message["role"] not in self._known:
                new.setdefault(message["role"], f"messages[{n}].role")
        for role, place in new.items():
            if len(role) > _LONGEST or len(new) > _MOST_NEW:
                raise _refused(place, role, f"at most {_MOST_NEW} others, of {_LONGEST} characters, are looked at")
        try:
            text = render(messages)
        except RequestError as error:
            if not new:
                raise
            role, place = next(iter(new.items()))
            raise _refused(place, role, str(error)) from None
        for role, place in new.items():
            others = [_other(message) if message["role"] == role else message for message in messages]
            with suppress(RequestError):  # of a template that knows this role and not the other
                if render(others) == text:
                    raise _refused(place, role, "the model's template would leave it out")
            if len(self._known) < _MOST_KNOWN:
                self._known.add(role)
        return text


def _other(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Another role that says something else."""
    return {**message, "role": message["role"] + "?", "content": message["content"] + "?"}


def _refused(place: str, role: str, why: str) -> Exception:
    return refused(place, f"must be one of {', '.join(_OPENAI)}, not {role[:40]!r}: {why}")
