"""From bodies to requests: what no answer shows."""

import pytest

from phaseline.engine.engine import Engine
from phaseline.serve.door.asked import Asked, Asking
from phaseline.serve.door.problems import Problem
from phaseline.serve.door.prompts import Prompts
from phaseline.serve.door.protocol import ChatBody, CompletionBody


def asking(engine: Engine) -> Asking:
    assert engine.tokenizer
    return Asking(Prompts(engine.tokenizer), "tiny", engine.context, 8)


def test_requests_carry_priority_salt_and_progress(engine: Engine) -> None:
    def asked(key: str | None = None, **fields: object) -> Asked:
        return asking(engine).completion(CompletionBody(prompt=["a", "b"], **fields), key)  # type: ignore[arg-type]

    plain = asked()
    assert [(r.priority, r.salt, r.progress) for r in plain.requests] == [(0, b"", False)] * 2
    assert len({r.id for r in (*plain.requests, *asked().requests)}) == 4
    assert [r.priority for r in asked(priority=-3).requests] == [-3, -3]
    assert [r.progress for r in asked(return_progress=True, stream=True).requests] == [True, True]
    assert not asked(return_progress=True).requests[0].progress  # there is nowhere to tell it
    salts = [asked(key, cache_salt=salt).requests[0].salt for key in (None, "k", "l") for salt in (None, "s", "t")]
    assert len(set(salts)) == 9 and salts[0] == b"" and all(len(salt) == 64 for salt in salts[1:])
    assert salts == [asked(key, cache_salt=s).requests[0].salt for key in (None, "k", "l") for s in (None, "s", "t")]


def test_a_chat_may_fill_the_context(engine: Engine) -> None:
    body = ChatBody(messages=[{"role": "user", "content": "Hi"}])
    assert asking(engine).chat(body, None).requests[0].params.max_tokens == engine.context
    body.max_tokens, body.max_completion_tokens = 5, 7
    assert asking(engine).chat(body, None).requests[0].params.max_tokens == 7


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_the_context_has_no_room_for_is_refused(engine: Engine, name: str) -> None:
    hello = [{"role": "user", "content": "Hi"}]
    prompt = asking(engine).chat(ChatBody(messages=hello), None).requests[0].prompt
    room = engine.context - len(prompt)
    body = ChatBody(messages=hello)
    setattr(body, name, room)
    asking(engine).chat(body, None)
    setattr(body, name, room + 1)
    with pytest.raises(
        Problem, match=f"^{name} = {room + 1}: .* room for {room} after a prompt of {len(prompt)} "
    ) as told:
        asking(engine).chat(body, None)
    assert told.value.status == 400 and told.value.facts.param == name
    assert told.value.facts.code == "context_length_exceeded"


def test_the_longest_of_several_prompts_needs_room(engine: Engine) -> None:
    prompts = [[50] * 10, [50] * (engine.context - 8)]
    asking(engine).completion(CompletionBody(prompt=prompts, max_tokens=8), None)
    asking(engine).completion(CompletionBody(prompt=prompts), None)  # what nobody asked for ends with the context
    with pytest.raises(Problem, match=r"max_tokens = 9: a context of .* has room for 8 after"):
        asking(engine).completion(CompletionBody(prompt=prompts, max_tokens=9), None)


def test_a_prompt_that_is_too_long_by_itself_is_for_the_engine_to_refuse(engine: Engine) -> None:
    asking(engine).completion(CompletionBody(prompt="x" * engine.context, max_tokens=9), None)
