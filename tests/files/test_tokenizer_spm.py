"""SentencePiece vocabularies against llama.cpp, against sentencepiece, and against what their rules say."""

import io
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, RequestError, UnsupportedError
from phaseline.files.text_stream import TextStream
from phaseline.files.tokenizer import Tokenizer
from support.llamacpp import LlamaCpp, llamacpp
from support.tiny import write_llama
from support.vocab_cases import tiny_spm_metadata

# Ranks with ties, gaps in the chain of merges ("xyz" has no way to be made), letters that are no tokens themselves,
# tokens over a space, and runs of spaces and of one letter.
SCORES = {
    **{"▁": -30, "a": -31, "b": -32, "c": -33, "h": -34, "e": -35, "l": -36, "o": -37, "é": -38, "漢": -39, "\n": -40},
    **{"▁a": -1, "ab": -2, "bc": -2, "abc": -3, "he": -4, "ll": -5, "hell": -6, "▁hell": -7, "lo": -4.5, "xyz": -1},
    **{
        "▁▁": -8,
        "▁▁▁": -8,
        "▁▁▁▁": -9,
        "aa": -10,
        "aaa": -10,
        "aaaa": -10,
        "c▁a": -2.5,
        "qq": -3,
        "漢字": -11,
        "é漢": -11,
    },
}
PARTS = [
    "a",
    "b",
    "c",
    "ab",
    "hello",
    " ",
    "  ",
    "aaa",
    "é",
    "漢字",
    "🦙",
    "q",
    "xyz",
    "\n",
    "<tool>",
    "</s>",
    "<s>",
    "\x00",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=20).map("".join) | st.text()


def tokenizer(ranked: Mapping[str, float] = SCORES, /, **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(tiny_spm_metadata(ranked, **keys))


def texts_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_text(id) for id in tokenizer.encode(text, bos=False, **options)]


@pytest.fixture(scope="module", params=[True, False])
def prefix(request: pytest.FixtureRequest) -> bool:
    """Whether a space is put before a text."""
    return bool(request.param)


@pytest.fixture(scope="module")
def mine(prefix: bool) -> Tokenizer:
    return tokenizer(add_space_prefix=prefix)


@pytest.fixture(scope="module")
def llama_cpp(prefix: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    named = {"bos_token_id": None, "eos_token_id": None}  # as write_llama names them
    meta = tiny_spm_metadata(SCORES, add_space_prefix=prefix, add_bos_token=True, **named)
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    write_llama(path, vocab=len(meta["tokenizer.ggml.tokens"]), extra=meta)
    with llamacpp(path, context=256) as server:
        yield server


@settings(max_examples=300)
@given(text=TEXTS, special=st.booleans())
@example(text="</s> a<tool>a  <s>", special=True)
@example(text="aaaaaaaaa     abcab", special=True)
def test_agrees_with_llama_cpp(llama_cpp: LlamaCpp, mine: Tokenizer, text: str, special: bool) -> None:
    ids, pieces = llama_cpp.tokenize(text, special=special)
    assert mine.encode(text, bos=False, special=special) == ids
    assert [mine.token_bytes(id, skip_special=False) for id in ids] == pieces


@given(text=TEXTS)
def test_bos_as_llama_cpp_puts_it(llama_cpp: LlamaCpp, mine: Tokenizer, text: str) -> None:
    twice = text.startswith("<s>")  # which llama.cpp warns of
    assert [0] * twice + mine.encode(text) == llama_cpp.tokenize(text, bos=True)[0]


@settings(max_examples=300)
@given(
    scores=st.dictionaries(st.text("ab▁é", min_size=1, max_size=5), st.sampled_from([-1, -2, -2.5, 0, float("-inf")])),
    text=st.text("ab é", max_size=30),
)
@example(scores={"aa": -1, "aaa": -1}, text="aaaaaa")
def test_the_best_scored_pair_merges_first(scores: dict[str, float], text: str) -> None:
    """As slowly and plainly as that can be done."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while known := [n for n, pair in enumerate(itertools.pairwise(symbols)) if "".join(pair) in scores]:
        best = max(known, key=lambda n: (scores["".join(symbols[n : n + 2])], -n))
        symbols[best : best + 2] = ["".join(symbols[best : best + 2])]
    expected = [[symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()] for symbol in symbols]
    assert texts_of(tokenizer(scores), text) == [*itertools.chain.from_iterable(expected)]


TRAINED = {
    "llama": {"byte_fallback": True},
    "gemma": {"byte_fallback": True, "add_dummy_prefix": False, "user_defined_symbols": ["<tool>", "\n\n"]},
    "no_bytes": {"byte_fallback": False},
    "squeezed": {"byte_fallback": True, "remove_extra_whitespaces": True},
    "over_spaces": {"byte_fallback": True, "split_by_whitespace": False},
}


@pytest.fixture(scope="module", params=TRAINED)
def trained(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    """sentencepiece's own processor of a vocabulary that it learnt from these tests, and ours of the same."""
    given = {"remove_extra_whitespaces": False} | TRAINED[request.param]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(Path(__file__).read_text().splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=600,
        normalization_rule_name="identity",
        allow_whitespace_only_pieces=True,
        minloglevel=2,
        **given,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(processor.get_piece_size())

    def kind(id: int) -> int:
        if processor.is_unknown(id) or processor.is_control(id):
            return 2 if processor.is_unknown(id) else 3
        if processor.is_byte(id):
            return 6
        return 4 if processor.id_to_piece(id) in given.get("user_defined_symbols", []) else 1

    return processor, Tokenizer.from_metadata(
        tiny_spm_metadata(
            bos_token_id=processor.bos_id(),
            eos_token_id=processor.eos_id(),
            tokens=[processor.id_to_piece(id) for id in ids],
            scores=[processor.get_score(id) for id in ids],
            token_type=[kind(id) for id in ids],
            add_space_prefix=given.get("add_dummy_prefix", True),
            remove_extra_whitespaces=given["remove_extra_whitespaces"],
        )
    )


WORDS = st.sampled_from([*Path(__file__).read_text()[:3000].split(" "), "", "\n\n", "漢字", "🦙🦙", "é", "<tool>"])


@settings(max_examples=200)
@given(text=st.lists(WORDS).map(" ".join) | st.text(st.characters(codec="utf-8", exclude_characters="▁\0")))
def test_agrees_with_sentencepiece(trained: tuple[Any, Tokenizer], text: str) -> None:
    processor, mine = trained
    ids = processor.encode(text)
    assert mine.encode(text, bos=False, special=False) == ids
    assert mine.decode(ids) == processor.decode(ids) or processor.unk_id() in ids


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁")) | TEXTS)
def test_text_survives(mine: Tokenizer, text: str) -> None:
    text = text.replace("<tool>", "")
    assert mine.decode(mine.encode(text, special=False)) == text


@given(ids=st.lists(st.integers(0, 258 + len(SCORES))) | st.binary().map(lambda raw: [3 + byte for byte in raw]))
def test_bytes_join_into_characters_as_they_come(mine: Tokenizer, ids: list[int]) -> None:
    stream = TextStream(mine)
    text = "".join(map(stream.push, ids)) + stream.finish()
    assert text == b"".join(map(mine.token_bytes, ids)).decode(errors="replace")


def test_the_space_before_a_text_comes_off_again() -> None:
    found = tokenizer()
    ids = found.encode("ab")
    assert [found.token_text(id) for id in ids] == ["<s>", "▁a", "b"]
    assert found.decode(ids) == found.decode(ids[1:]) == "ab"
    assert found.decode(found.encode(" ab")) == " ab"
    assert found.decode(ids, skip_special=False) == "<s>ab"
    assert found.decode(tokenizer(add_space_prefix=False).encode(" ab")) == "ab"
    stream = TextStream(found)  # a continuation: its first space belongs to it
    assert "".join(map(stream.push, ids)) == " ab"


def test_a_control_or_byte_token_spelt_in_text_is_text() -> None:
    """Even where the merges lead there."""
    scores = dict.fromkeys(["<", "</", "</s", "<0", "<0x", "<0x4", "<0x41"], -1)
    assert texts_of(tokenizer(scores), "</s>", special=False) == ["<0xE2>", "<0x96>", "<0x81>", "</s", "<0x3E>"]
    assert texts_of(tokenizer(scores, add_space_prefix=False), "<0x41>") == ["<0x41", "<0x3E>"]


def test_what_no_token_spells_without_bytes() -> None:
    """One unknown token for a run of it; nothing, if there is none."""
    keys = {"tokens": ["<unk>", "▁", "a"], "scores": [0.0, -1.0, -2.0], "bos_token_id": None, "eos_token_id": None}
    found = tokenizer(**keys, token_type=[2, 1, 1], add_bos_token=False)
    assert found.encode("a漢字a🦙") == [1, 2, 0, 2, 0]
    assert found.decode([1, 2, 0, 2, 0]) == "aa"
    assert tokenizer(**keys, token_type=[3, 1, 1], add_bos_token=False).encode("a漢字a🦙") == [1, 2, 2]


@pytest.mark.parametrize(
    ("unit", "size"),
    [("a", 1 << 20), *((unit, 1 << 17) for unit in (" ", "ab", "\n", "<tool>", "</s", "🦙", "<", "a "))],
)
def test_long_repetitive_text(unit: str, size: int) -> None:
    found, text = tokenizer(), unit * (size // len(unit.encode()))
    assert found.decode(found.encode(text, special=False)).replace("<tool> ", "<tool>") == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scores", None),
        ("scores", [0.0]),
        ("scores", [0] * 260),
        ("scores", "x"),
        ("scores", [float("nan")] * 260),
        ("token_type", None),
        ("token_type", [1] * 3),
        ("token_type", [7] * 260),
        ("token_type", [6] * 260),
        ("token_type", [3, 3, 2, 6, *[1] * 256]),
        ("tokens", None),
        ("tokens", ["a"] * 260),
        ("tokens", [1] * 260),
        ("bos_token_id", None),
        ("eos_token_id", 260),
        ("add_space_prefix", 1),
        ("remove_extra_whitespaces", "yes"),
        ("add_eos_token", 0),
    ],
)
def test_malformed_metadata_is_refused_by_key(key: str, value: Any) -> None:
    with pytest.raises(FileFormatError, match=f"tokenizer.ggml.{key}"):
        tokenizer({}, **{key: value})


def test_a_normalisation_that_is_not_built_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="precompiled_charsmap"):
        tokenizer(precompiled_charsmap=[0])


def test_half_a_surrogate_pair_is_refused(mine: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        mine.encode("a\ud83e")
