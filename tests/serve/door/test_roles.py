"""Roles besides OpenAI's: a template's own are served, those that it would leave out are refused by name."""

from collections.abc import Iterator
from typing import Any

import pytest

from phaseline.files.tokenizer import Tokenizer
from phaseline.serve.door.problems import Problem
from phaseline.serve.door.prompts import Prompts
from phaseline.serve.door.protocol import ChatBody
from phaseline.serve.door.roles import Roles
from support.server import Server, serving
from support.tiny import write_llama
from support.vocab_cases import tiny_metadata

CHAT, HELLO = "/v1/chat/completions", {"role": "user", "content": "hello"}
OPENAI = ("system", "developer", "user", "assistant", "tool", "function")
SAYS = "{{ m.content }};"
SERVES_CRITICS = {
    "any role": "<|{{ m['role'] }}|>{{ m.content }}",
    "any text": SAYS,
    "any role, not its text": "<|{{ m.role }}|>",
    "equal": "{% if m.role == 'critic' or m.role == 'user' %}" + SAYS + "{% endif %}",
    "double quotes": '{% if m["role"]=="critic" %}' + SAYS + "{% endif %}",
    "literal first": "{% if 'critic' == m.role %}" + SAYS + "{% endif %}",
    "variable": "{% set role = m['role'] %}{% if role == 'critic' %}" + SAYS + "{% endif %}",
    "list": "{% if m.role in ['user', 'critic'] %}" + SAYS + "{% endif %}",
    "substring": "{% if 'crit' in m.role %}" + SAYS + "{% endif %}",
    "filter": "{% if m.role | upper == 'CRITIC' %}{{ m.content | upper }}{% endif %}",
    "test": "{% if m.role is eq('critic') %}" + SAYS + "{% endif %}",
    "method": "{% if m.role.startswith('crit') %}" + SAYS + "{% endif %}",
    "mapping": "{{ {'user': 'U', 'critic': 'C'}[m.role] }}{{ m.content }}",
    "of its own field": "{% if m.role == 'critic' and m.score %}" + SAYS + "{% endif %}",
    "by its presence": "{% if m.role == 'critic' %}[judged]{% endif %}",
    "by its word": "{% if m.role == 'critic' and m.content == 'no' %}[refused]{% endif %}",
    "others raise": "{% if m.role not in ['user', 'critic'] %}{{ raise_exception('who?') }}{% endif %}" + SAYS,
    "an own loop": "{% endfor %}{% for m in messages | selectattr('role', 'equalto', 'critic') %}" + SAYS,
}
KNOWS_NO_CRITIC = {
    "others": "{% if m.role == 'user' %}" + SAYS + "{% endif %}",
    "last or not": "{% if m.role == 'user' %}"
    + SAYS
    + "{% endif %}{% if not loop.last %}{{ loop.index }}\n{% endif %}",
    "word elsewhere": "critic {% if m.role == 'user' %}{{ 'critic' }}{{ m.critic }}" + SAYS + "{% endif %}",
    "how many": "{{ messages | length }}{% if m.role == 'user' %}" + SAYS + "{% endif %}",
    "raises": "{% if m.role != 'user' %}{{ raise_exception('who is this?') }}{% endif %}" + SAYS,
}


def looped(template: str) -> str:
    return "{% for m in messages %}" + template + "{% endfor %}"


def prompts(template: str) -> Prompts:
    metadata = tiny_metadata() | {"tokenizer.chat_template": template}
    return Prompts(Tokenizer.from_metadata(metadata))


def ids(prompts: Prompts, *messages: Any) -> list[int]:
    return prompts.chat(ChatBody(messages=list(messages)), (), 1, 10_000)


@pytest.mark.parametrize("way", SERVES_CRITICS)
def test_whom_a_template_serves_is_served(way: str) -> None:
    served = prompts(looped(SERVES_CRITICS[way]))
    critic = {"role": "critic", "content": "no", "score": 5}
    for _ in range(2):
        assert ids(served, HELLO, critic) != ids(served, HELLO)


@pytest.mark.parametrize("way", KNOWS_NO_CRITIC)
def test_whom_a_template_leaves_out_or_refuses_is_refused_by_name(way: str) -> None:
    refusing = prompts(looped(KNOWS_NO_CRITIC[way]))
    for messages in ([{"role": "critic", "content": "no"}], [HELLO, {"role": "critic", "content": "no"}, HELLO]):
        for _ in range(2):
            with pytest.raises(Problem, match=r"must be one of system, developer, .*, not 'critic': ") as told:
                ids(refusing, *messages)
            assert told.value.status == 400
            assert told.value.facts.param == f"messages[{len(messages) // 2}].role"
            assert way != "raises" or "who is this?" in str(told.value)
    assert ids(refusing, HELLO)


def test_what_is_wrong_besides_roles_is_the_templates_own_message() -> None:
    with pytest.raises(Exception, match="template failed: stop") as told:
        ids(prompts("{{ raise_exception('stop') }}"), HELLO)
    assert "role" not in str(told.value)


def test_a_role_is_tried_once() -> None:
    roles, spelt = Roles(), list[str]()

    def render(messages: Any) -> str:
        spelt.append("".join(message["content"] for message in messages))
        return spelt[-1]

    critics = [HELLO, {"role": "critic", "content": "no"}] * 3
    assert roles.spell(critics, render) == roles.spell(critics, render) == "hellono" * 3
    assert len(spelt) == 3


def test_roles_to_be_tried_are_few_and_short() -> None:
    anyone = prompts(looped("{{ m.role }}:" + SAYS))
    for start in range(0, 400, 16):  # more than are remembered
        assert ids(anyone, *({"role": f"speaker {n}", "content": "x"} for n in range(start, start + 16)))
    crowd = [{"role": f"speaker {n}", "content": "x"} for n in range(1000, 1017)]
    with pytest.raises(Problem, match=r"messages\[0\].role: .* at most 16 others, of 64 characters"):
        ids(anyone, *crowd)
    assert ids(anyone, *crowd[:10]) and ids(anyone, *crowd[1:])
    assert ids(anyone, {"role": "x" * 64, "content": "x"})
    with pytest.raises(Problem, match=r"not 'x{40}': ") as told:
        ids(anyone, HELLO, {"role": "x" * 65, "content": "x"})
    assert told.value.facts.param == "messages[1].role"


@pytest.fixture(scope="module")
def choosy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose template knows users and critics alone."""
    template = looped(SERVES_CRITICS["list"])
    path = tmp_path_factory.mktemp("models") / "choosy.gguf"
    with serving(write_llama(path, extra={"tokenizer.chat_template": template})) as running:
        yield running


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_the_server_tells_whom_it_leaves_out(choosy: Server, path: str) -> None:
    def asked(*roles: str) -> Any:
        return choosy.ask(path, {"messages": [HELLO, *({"role": r, "content": "x"} for r in roles)], "max_tokens": 1})

    assert asked(*OPENAI).status == 200
    assert asked("critic", "user", "critic").status == 200
    for role in ("usr", "User", "content", "critics", "", " user", "user" * 1000):
        answer = asked("critic", role)
        assert answer.status == 400 and answer.json["error"]["param"] == "messages[2].role"
        assert len(answer.json["error"]["message"]) < 400


def test_a_template_that_names_each_speaker_serves_all(server: Server) -> None:
    body = {"messages": [HELLO, {"role": "Ann", "content": "x"}, {"role": "Ben", "content": "y"}]}
    tokens = server.ask("/tokenize", body).json["tokens"]
    assert server.ask("/detokenize", {"tokens": tokens}).json["prompt"] == "user: hello\nAnn: x\nBen: y\nassistant: "
