"""The tokenizer against llama.cpp, against its public cases, and against what each rule of a vocabulary says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, RequestError, UnsupportedError
from phaseline.files.gguf import open_gguf
from phaseline.files.pretokenizers import SPLITTINGS
from phaseline.files.tokenizer import Tokenizer
from support.llamacpp import LlamaCpp, llamacpp
from support.turns import others_run_during
from support.vocab_cases import CASES, public_vocab_dir, read_cases, tiny_metadata

CORPUS = [
    "",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "It's we'll they've I'M you'RE he'd 'tis 'sss o'clock",
    "def f(x: int) -> dict[str, int]:\n\treturn {'a': x**2}  # café\n\n\n    pass\r\n",
    "pi = 3.14159265358979, 1,000,000 + 0x1F4 = ?, ½ ² Ⅷ ١٢٣ १२३ \U0001d7d9\U0001d7da",
    "  leading,   inner \t\t tabs\n \n  \n\u00a0\u2003\u3000wide  trailing   ",
    "漢字とかな、한국어 텍스트\uff0c中文。ไทย العربية עברית हिन्दी",
    "e\u0301 n\u0303 \u0301 a\u0308\u0323 \u200d\u200c\ufeff\u202e",
    "🦙👍🏽👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 \U0001f9ff\U000e0041 ✅✅✅",
    "\x00\x01\x04\x06\x1d\x7f\x85\U00040000\U000f0000",
    "<|im_start|>user\nHi<|im_end|>\n<|im_end|><|im_start |><|endoftext|> <|im_",
    "!!!???... ----==== ####\\\\//~~``''\"\"((((]]]]",
    "\u017fK ıİ ǅ ﬁ ß '\u017f 'S",
    "https://example.org/a_b-c?d=e&f=%20#g user@example.org C:\\dir\\file.txt",
]
SCRIPTS = st.sampled_from("aZé1२½ \n\r\t\u00a0'\"!<|>_-—\u017fK漢字🦙🏽\u0301\u200d\ufeff\x00\x85")
# Around a byte that has no token (of planes 4 and up, for SmolLM2) the library merges, as llama.cpp does not.
TEXTS = (
    st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_categories=["Cc"]))
    | st.text(SCRIPTS)
    | st.lists(st.sampled_from(CORPUS)).map("".join)
)


@pytest.fixture(scope="module")
def llama_cpp(smollm2_path: Path) -> Iterator[LlamaCpp]:
    with llamacpp(smollm2_path, context=256) as server:
        yield server


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_metadata(open_gguf(smollm2_path).metadata)


@pytest.fixture(scope="session")
def vocab_dir() -> Path:
    try:
        return public_vocab_dir()
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", CASES)
def test_public_cases(vocab_dir: Path, name: str) -> None:
    path = vocab_dir / f"ggml-vocab-{name}.gguf"
    tokenizer = Tokenizer.from_metadata(open_gguf(path).metadata)
    cases = read_cases(path)
    assert len(cases) > 40
    for text, ids in cases:
        assert tokenizer.encode(text, bos=False, special=False) == ids
        assert tokenizer.decode(ids) == text


@settings(max_examples=300)
@given(TEXTS, st.booleans())
def test_agrees_with_llama_cpp(llama_cpp: LlamaCpp, smollm2: Tokenizer, text: str, special: bool) -> None:
    assert smollm2.encode(text, special=special) == llama_cpp.tokenize(text, special=special)[0]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("text", CORPUS)
def test_agrees_with_llama_cpp_on_a_corpus(llama_cpp: LlamaCpp, smollm2: Tokenizer, text: str, special: bool) -> None:
    ids, pieces = llama_cpp.tokenize(text, special=special)
    assert smollm2.encode(text, special=special) == ids
    assert [smollm2.token_bytes(id, skip_special=False) for id in ids] == pieces


@pytest.mark.parametrize("unit", ["a", " ", "ab", "\n", "1", "<|im_end|>", "\n ", "🦙"])
def test_long_repetitive_text(smollm2: Tokenizer, unit: str) -> None:
    text = unit * (500_000 // len(unit.encode()))
    assert smollm2.decode(smollm2.encode(text), skip_special=False) == text


def test_other_threads_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    text = "several words to be found " * 10_000
    assert others_run_during(lambda: smollm2.encode(text))
    assert not others_run_during(lambda: sum(text.count(letter) for letter in text[:20]))


@pytest.fixture(scope="module", params=SPLITTINGS)
def tiny(request: pytest.FixtureRequest) -> Tokenizer:
    """A tiny vocabulary under each splitting rule."""
    return Tokenizer.from_metadata(tiny_metadata(pre=request.param, merges=["h e", "l l", "he ll", "Ġ hell"]))


@settings(max_examples=30)
@given(text=TEXTS)
def test_text_survives_every_rule(tiny: Tokenizer, text: str) -> None:
    assert tiny.decode(tiny.encode(text, bos=False), skip_special=False) == text


def test_merges_apply_in_their_order_within_a_word() -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(merges=["b c", "a b", "ab c", "Ġ a"]))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("abc a bc")] == ["a", "bc", "Ġa", "Ġ", "bc"]


@pytest.mark.parametrize(
    ("pre", "texts"), [("llama-bpe", ["hello"]), ("kimi-k2", ["hello"]), ("qwen2", ["he", "l", "l", "o"])]
)
def test_a_word_in_the_vocabulary_needs_no_merges_where_the_rule_says_so(pre: str, texts: list[str]) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata("hello", pre=pre, merges=["h e"], add_bos_token=False))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("hello")] == texts


@pytest.mark.parametrize(
    ("keys", "text", "options", "count"),
    [
        ({"add_bos_token": True}, "a", {}, 1),
        ({"add_bos_token": True}, "", {}, 1),
        ({"add_bos_token": True}, "<s>a", {}, 1),
        ({"add_bos_token": True}, "<s>a", {"special": False}, 1),
        ({"add_bos_token": True}, "a", {"bos": False}, 0),
        ({"add_bos_token": True}, "<s>a", {"bos": False}, 1),
        ({"add_bos_token": False}, "a", {}, 0),
        ({"add_bos_token": False, "pre": "llama-bpe"}, "a", {}, 0),
        ({}, "a", {}, 0),
        ({"pre": "qwen2"}, "a", {}, 0),
        ({"pre": "llama-bpe"}, "a", {}, 1),
    ],
)
def test_one_bos_never_two(keys: dict[str, Any], text: str, options: dict[str, bool], count: int) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(**keys))
    ids = tokenizer.encode(text, **options)
    assert [id == tokenizer.bos_id for id in ids[:2]].count(True) == count
    assert ids[:count] == [tokenizer.bos_id] * count


def test_eos_where_the_file_asks_for_it() -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(add_bos_token=True, add_eos_token=True))
    texts = [[tokenizer.token_text(id) for id in tokenizer.encode(text)] for text in ("a", "<s>a</s>", "")]
    assert texts == [["<s>", "a", "</s>"], ["<s>", "a", "</s>"], ["<s>", "</s>"]]
    assert [tokenizer.token_text(id) for id in tokenizer.encode("a", bos=False)] == ["a"]


def test_special_tokens_in_text() -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata())
    marked, plain = tokenizer.encode("x</s><tool>y"), tokenizer.encode("x</s><tool>y", special=False)
    assert [tokenizer.token_text(id) for id in marked] == ["x", "</s>", "<tool>", "y"]
    assert [tokenizer.token_text(id) for id in plain] == ["x", "<", "/", "s", ">", "<tool>", "y"]
    assert tokenizer.decode(marked) == "x<tool>y"
    assert tokenizer.decode(marked, skip_special=False) == tokenizer.decode(plain) == "x</s><tool>y"


def test_bytes_of_tokens() -> None:
    """A token in the byte alphabet, two outside it (a space has a stand-in there), and one of each kind."""
    tokens = ["Ċé", "漢字", "é ", "<unknown>", "<control>", "<useré>", "<unused>"]
    tokenizer = Tokenizer.from_metadata(
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens}
        | {"tokenizer.ggml.token_type": [1, 1, 1, 2, 3, 4, 5], "tokenizer.ggml.merges": []}
    )
    shown = [b"\n\xe9", "漢字".encode(), "é ".encode(), b"", b"", "<useré>".encode(), b""]
    assert [tokenizer.token_bytes(id) for id in range(7)] == shown
    assert tokenizer.decode(range(7)) == "\n\ufffd漢字é <useré>"
    assert tokenizer.decode(range(3, 7), skip_special=False) == "".join(tokens[3:])
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (7, None, None, frozenset())


@pytest.mark.parametrize("id", [-1, 259])
def test_ids_outside_the_vocabulary_are_refused(id: int) -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata())
    assert tokenizer.vocab_size == 259
    for read in (tokenizer.token_bytes, tokenizer.token_text, lambda id: tokenizer.decode([id])):
        with pytest.raises(RequestError, match=f"token id {id} is outside the vocabulary of 259"):
            read(id)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        Tokenizer.from_metadata(tiny_metadata()).encode("a\ud83e")


def test_every_way_to_end_a_generation() -> None:
    tokens = ["a", "b", "c", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|start|>", "d"]
    types, named = (
        [1, 1, 1, 3, 4, 1, 3, 1],
        {"bos_token_id": 7, "eos_token_id": 0, "eot_token_id": 1, "eom_token_id": 2},
    )
    tokenizer = Tokenizer.from_metadata(tiny_metadata(tokens=tokens, token_type=types, **named))
    assert tokenizer.eos_ids == {0, 1, 2, 3, 4}  # not 5: a piece of ordinary text that happens to look like one
    assert (tokenizer.bos_id, tokenizer.eos_id) == (7, 0)


def test_smollm2_ends(smollm2: Tokenizer) -> None:
    assert {smollm2.token_text(id) for id in smollm2.eos_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert smollm2.chat_template is not None
    assert "<|im_start|>" in smollm2.chat_template


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", None),
        ("model", 7),
        ("pre", None),
        ("pre", ["gpt-2"]),
        ("tokens", None),
        ("tokens", "abc"),
        ("tokens", 3),
        ("tokens", [1, 2]),
        ("tokens", ["a", "b", "a", *map(str, range(256))]),
        ("token_type", [1]),
        ("token_type", "1"),
        ("token_type", [1.0] * 259),
        ("token_type", [True] * 259),
        ("token_type", [0, *[1] * 258]),
        ("token_type", [*[1] * 258, 6]),
        ("token_type", [*[1] * 258, 7]),
        ("merges", None),
        ("merges", [1]),
        ("merges", ["ab"]),
        ("merges", ["a b c", "ab"]),
        ("merges", ["", ""]),
        ("merges", ["a b"]),
        ("merges", ["a zz"]),
        ("merges", ["a "]),
        ("bos_token_id", 259),
        ("eos_token_id", -1),
        ("eos_token_id", "2"),
        ("eot_token_id", 1 << 32),
        ("eom_token_id", 2.0),
        ("add_bos_token", 1),
        ("add_eos_token", "yes"),
    ],
)
def test_malformed_metadata_is_refused_by_key(key: str, value: Any) -> None:
    meta = tiny_metadata() | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(FileFormatError, match=f"tokenizer.ggml.{key}"):
        Tokenizer.from_metadata({name: value for name, value in meta.items() if value is not None})


def test_a_merge_listed_twice_is_refused() -> None:
    with pytest.raises(FileFormatError, match=r"tokenizer.ggml.merges holds 'a b' twice"):
        Tokenizer.from_metadata(tiny_metadata("ab") | {"tokenizer.ggml.merges": ["a b", "a b"]})


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_mark_asked_for_but_not_named_is_refused(name: str) -> None:
    with pytest.raises(FileFormatError, match=rf"tokenizer.ggml.{name}_token_id is missing"):
        Tokenizer.from_metadata(tiny_metadata(**{f"add_{name}_token": True, f"{name}_token_id": None}))


def test_a_chat_template_that_is_no_text_is_refused() -> None:
    with pytest.raises(FileFormatError, match=r"tokenizer.chat_template"):
        Tokenizer.from_metadata(tiny_metadata() | {"tokenizer.chat_template": 1})


@pytest.mark.parametrize(("key", "value", "supported"), [("model", "t5", "gpt2"), ("pre", "gpt-5", "smollm")])
def test_unknown_kinds_are_refused_by_name(key: str, value: str, supported: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{value}.*tokenizer.ggml.{key}.*supported: .*{supported}"):
        Tokenizer.from_metadata(tiny_metadata(**{key: value}))
