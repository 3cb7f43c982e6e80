"""Tokenizers of Hugging Face folders against transformers, and folders that are not what they should be."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, processors
from transformers import PreTrainedTokenizerFast

from phaseline.errors import FileFormatError, PhaselineError, RequestError, UnsupportedError
from phaseline.files.text_stream import TextStream
from phaseline.files.tokenizer import Tokenizer
from support.hf_tokenizers import byte_level, spaced, write_folder

KINDS = {
    "byte_level": byte_level(),
    "byte_level_bos": byte_level(bos=True),
    "spaced": spaced(),
    "spaced_no_prefix": spaced(prefix=False),
}
TEXTS = st.text() | st.lists(
    st.sampled_from(
        ["hell", " hello", " ", "  ", "é", "漢", "🦙", "<s>", "</s>", "<tool>", "<|im_end|>", "\n", "1", "<0x41>"]
    )
).map("".join)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp(request.param), KINDS[request.param])


@pytest.fixture(scope="module")
def mine(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(folder)


@settings(max_examples=200)
@given(text=TEXTS)
def test_agrees_with_transformers(mine: Tokenizer, reference: Any, text: str) -> None:
    ids = mine.encode(text, bos=False)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert mine.decode(ids) == reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    framed = reference.encode(text)
    assert mine.encode(text) == (ids if text.startswith("<s>") else framed)  # never a second BOS


@settings(max_examples=100)
@given(text=TEXTS)
def test_control_tokens_can_be_text(mine: Tokenizer, reference: Any, text: str) -> None:
    ids = mine.encode(text, bos=False, special=False)
    assert ids == reference.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert not {1, 2, 3} & set(ids)


@settings(max_examples=100)
@given(text=TEXTS.filter(lambda text: "▁" not in text and "<tool>" not in text))
def test_text_survives(mine: Tokenizer, text: str) -> None:
    assert mine.decode(mine.encode(text, special=False)) == text


@settings(max_examples=100)
@given(ids=st.lists(st.integers(0, 264)))
def test_a_stream_gives_what_decoding_gives(mine: Tokenizer, ids: list[int]) -> None:
    """As a continuation, whose first space is part of the text."""
    stream = TextStream(mine)
    text = "".join(map(stream.push, ids)) + stream.finish()
    assert text == b"".join(map(mine.token_bytes, ids)).decode(errors="replace")


@pytest.mark.parametrize(
    ("asked", "marks"),
    [
        ({}, (False, False)),
        ({"add_bos_token": True}, (True, False)),
        ({"add_eos_token": True}, (False, True)),
        ({"add_bos_token": True, "bos_token": None}, (False, False)),
    ],
)
def test_the_settings_say_what_frames_a_text(tmp_path: Path, asked: dict[str, Any], marks: tuple[bool, bool]) -> None:
    plain = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), asked))
    ids = plain.encode("hello")
    assert (ids[0] == 1, ids[-1] == 2) == marks


def test_the_settings_can_take_bos_away(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level(bos=True), {"add_bos_token": False})
    assert Tokenizer.from_folder(folder).encode("hello") == byte_level().encode("hello").ids


def test_every_id_that_ends_a_generation(tmp_path: Path) -> None:
    ends = {"eos_token_id": [4, 5]}
    folder = write_folder(tmp_path, byte_level(), generation_config=ends, config={"eos_token_id": 6})
    assert Tokenizer.from_folder(folder).eos_ids == {2, 3, 4, 5}
    (folder / "generation_config.json").unlink()
    assert Tokenizer.from_folder(folder).eos_ids == {2, 3, 6}
    (folder / "config.json").unlink()
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.eos_ids, tokenizer.bos_id, tokenizer.eos_id) == ({2, 3}, 1, 2)


def test_rows_of_the_embedding_beyond_the_vocabulary_are_unused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level())
    exact = Tokenizer.from_folder(folder)
    padded = Tokenizer.from_folder(folder, vocab_size=exact.vocab_size + 7)
    assert padded.vocab_size == exact.vocab_size + 7
    assert padded.token_bytes(exact.vocab_size + 6) == b""
    with pytest.raises(FileFormatError, match="token ids up to"):
        Tokenizer.from_folder(folder, vocab_size=exact.vocab_size - 1)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ x }}", "{{ x }}"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
        ("", None),
        (None, None),
    ],
)
def test_chat_template(tmp_path: Path, template: Any, found: str | None) -> None:
    folder = write_folder(tmp_path, byte_level(), {"chat_template": template})
    assert Tokenizer.from_folder(folder).chat_template == found
    (folder / "chat_template.jinja").write_text("é of its own file")
    assert Tokenizer.from_folder(folder).chat_template == "é of its own file"


def test_no_companions_are_needed(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids, tokenizer.chat_template) == (None, None, {3}, None)


def test_a_length_limit_in_the_file_cuts_no_text(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(3)
    library.enable_padding(length=9)
    assert len(Tokenizer.from_folder(write_folder(tmp_path, library)).encode("12345")) == 5


def _changed(**parts: Any) -> str:
    return json.dumps(json.loads(byte_level().to_str()) | parts)


def _model(**parts: Any) -> str:
    return _changed(model=json.loads(byte_level().to_str())["model"] | parts)


MISSING = {  # a last stage that puts a token it does not describe
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (None, FileFormatError, "missing; tokenizers in other files"),
        ("", FileFormatError, "not JSON"),
        ("[" * 100_000, FileFormatError, "not JSON"),
        ("[]", FileFormatError, "not a JSON object"),
        ("{}", FileFormatError, "refuses it"),
        ("\ud800", FileFormatError, "not UTF-8"),
        (_changed(model={"type": "BPE"}), FileFormatError, "refuses it"),
        (_changed(added_tokens=[{"id": 1 << 31, "content": "x"}]), FileFormatError, "refuses it"),
        (_model(vocab={"a": 1 << 31}, merges=[]), FileFormatError, "token id 2147483648"),
        (_changed(post_processor=MISSING), FileFormatError, "breaks down"),
        (_model(dropout=0.5), UnsupportedError, "dropout"),
        (_changed(decoder=None), UnsupportedError, "decoder"),
        (_changed(decoder=json.loads(decoders.WordPiece().__getstate__())), UnsupportedError, "WordPiece"),
    ],
)
def test_what_is_no_tokenizer_is_refused_by_file(
    tmp_path: Path, content: str | None, kind: type[PhaselineError], reason: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(kind, match=f"tokenizer.json: .*{reason}"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer_config", {"bos_token": "<begin>"}, "<begin>"),
        ("tokenizer_config", {"bos_token": 7}, "7"),
        ("tokenizer_config", {"bos_token": {"content": ["<s>"]}}, "malformed"),
        ("tokenizer_config", {"chat_template": 7}, "chat_template"),
        ("tokenizer_config", {"chat_template": [{"name": "default"}]}, "malformed"),
        ("tokenizer_config", [], "not a JSON object"),
        ("generation_config", {"eos_token_id": "2"}, "eos_token_id"),
        ("config", {"eos_token_id": [True]}, "eos_token_id"),
    ],
)
def test_malformed_companions_are_refused(tmp_path: Path, name: str, content: Any, reason: str) -> None:
    folder = write_folder(tmp_path, byte_level())
    (folder / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=reason):
        Tokenizer.from_folder(folder)


def test_a_frame_of_other_tokens_is_refused(tmp_path: Path) -> None:
    library = byte_level()
    library.post_processor = processors.TemplateProcessing(single="<|im_end|> $A", special_tokens=[("<|im_end|>", 3)])
    with pytest.raises(UnsupportedError, match=r"post_processor adds \['<\|im_end\|>'\]"):
        Tokenizer.from_folder(write_folder(tmp_path, library))


def test_half_a_surrogate_pair_is_refused(mine: Tokenizer) -> None:
    for special in (True, False):
        with pytest.raises(RequestError, match="surrogate"):
            mine.encode("a\ud83e", special=special)


LIBRARY = json.loads(spaced().to_str())


@settings(max_examples=150)
@given(data=st.data())
def test_any_part_of_any_type_is_refused_or_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One place of tokenizer.json replaced by what does not belong there: a tokenizer or an error, nothing else."""
    rules = json.loads(json.dumps(LIBRARY))
    place, key = rules, data.draw(st.sampled_from(sorted(rules)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(
        st.sampled_from([None, True, -1, 1 << 40, 0.5, "", "x", "Sequence", [], [None], {}, {"type": "x"}])
    )
    folder = tmp_path_factory.getbasetemp() / "changed"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except PhaselineError:
        return
    tokenizer.decode(tokenizer.encode("hello <s> é漢"))
