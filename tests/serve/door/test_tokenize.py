"""Token ids of texts and back, in vLLM's fields and in llama.cpp's; and what is served."""

from collections.abc import Iterator

import pytest
from openai import NotFoundError, OpenAI

from phaseline.engine.engine import Engine
from support.server import Server, serving
from support.tiny import write_llama

TEXT = "The other rate: é <|eos|>"


@pytest.fixture(scope="module")
def beginning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose texts begin with a control token of their own."""
    path = tmp_path_factory.mktemp("models") / "beginning.gguf"
    with serving(write_llama(path, add_bos=True)) as running:
        yield running


def test_texts_become_ids_and_texts_again(server: Server, engine: Engine) -> None:
    assert engine.tokenizer
    ids = engine.tokenizer.encode(TEXT)
    answer = server.ask("/tokenize", {"prompt": TEXT, "model": "tiny", "return_token_strs": True}).json
    assert answer["tokens"] == ids and answer["count"] == len(ids) and answer["max_model_len"] == engine.context
    assert [s.encode() for s in answer["token_strs"] if "\ufffd" not in s][-1] == b"<|eos|>"
    back = server.ask("/detokenize", {"tokens": ids}).json
    assert back["prompt"] == back["content"] == TEXT
    messages = [{"role": "user", "content": "Hi"}]
    assert server.ask("/tokenize", {"messages": messages}).json["tokens"] == engine.chat_prompt(messages)


def test_pieces_are_text_or_bytes(server: Server) -> None:
    pieces = server.ask("/tokenize", {"content": "hé", "with_pieces": True}).json["tokens"]
    assert [piece["piece"] for piece in pieces] == ["h", [195], [169]]
    plain = server.ask("/tokenize", {"content": "hé"}).json["tokens"]
    assert [piece["id"] for piece in pieces] == plain


def test_each_style_has_its_own_defaults(beginning: Server) -> None:
    def ids(**body: object) -> list[int]:
        return list(beginning.ask("/tokenize", body).json["tokens"])

    assert ids(prompt="it")[0] == ids(content="it", add_special=True)[0] == 0
    assert ids(prompt="it", add_special_tokens=False) == ids(content="it") == ids(prompt="it")[1:]
    assert len(ids(content="<|eos|>")) == 1 and len(ids(content="<|eos|>", parse_special=False)) == 6


def test_the_model_is_listed_by_its_name(openai: OpenAI, engine: Engine) -> None:
    (model,) = openai.models.list().data
    assert model.id == "tiny" and model.object == "model" and model.owned_by == "phaseline"
    assert openai.models.retrieve("tiny") == model
    assert model.model_dump()["max_model_len"] == engine.context
    with pytest.raises(NotFoundError):
        openai.models.retrieve("other/model")


def test_without_a_template_no_conversation_is_answered(beginning: Server) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = beginning.ask(path, {"messages": [{"role": "user", "content": "x"}]})
        assert answer.status == 400 and answer.json["error"]["param"] == "messages"
        assert "no chat template; /v1/completions" in answer.json["error"]["message"]
