"""From bodies to requests: what no answer shows."""

from phaseline.engine.engine import Engine
from phaseline.serve.door.asked import Asked, Asking
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
