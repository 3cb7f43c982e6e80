"""Each splitting rule against llama.cpp, through a vocabulary in which any two characters merge unless they are cut."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from phaseline.errors import RequestError
from phaseline.files.pretokenizers import SPLITTINGS, splitting
from phaseline.files.tokenizer import Tokenizer
from support.llamacpp import LlamaCpp, llamacpp
from support.tiny import write_llama
from support.vocab_cases import tiny_metadata

LETTERS = "aszASVé漢か한א1² \n\r\t'.,!-/_(€\u0301"
NAMES = {rule: name for name, rule in reversed(SPLITTINGS.items())}.values()  # one for each rule
# Characters on which llama.cpp departs from the published pattern, which is followed here: it knows ASCII's capitals
# alone, or cuts no word at a capital but at a mark, or keeps digits together that the vocabulary has no token for.
UNLIKE = {"tekken": "é漢か한א\u0301", "gpt-4o": "é漢か한א\u0301", "kimi-k2": "ASV\u0301", "deepseek-llm": "1²"}


def symbols(text: str) -> str:
    """The stand-ins of its bytes."""
    return ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


def merges() -> list[str]:
    """First bytes to characters, then any two characters."""
    spelt = [symbols(letter) for letter in LETTERS]
    within = [f"{letter[:n]} {letter[n]}" for letter in spelt for n in range(1, len(letter))]
    return [*dict.fromkeys(within), *map(" ".join, itertools.product(spelt, repeat=2))]


@pytest.fixture(scope="module", params=NAMES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Tokenizer, LlamaCpp]]:
    """The rule's name, our tokenizer under it, and llama.cpp."""
    meta = tiny_metadata(pre=request.param, merges=merges(), add_bos_token=False)
    path = tmp_path_factory.mktemp("rule") / "rule.gguf"
    named = {key: value for key, value in meta.items() if not key.endswith("_token_id")}  # as write_llama names them
    write_llama(path, vocab=len(meta["tokenizer.ggml.tokens"]), extra=named)
    with llamacpp(path, context=256) as server:
        yield request.param, Tokenizer.from_metadata(meta), server


@settings(max_examples=400)
@given(text=st.text(LETTERS, max_size=40))
def test_cuts_as_llama_cpp_does(pair: tuple[str, Tokenizer, LlamaCpp], text: str) -> None:
    name, mine, llama_cpp = pair
    text = text.translate(dict.fromkeys(map(ord, UNLIKE.get(name, "")), "a"))
    ids, _ = llama_cpp.tokenize(text)
    assert [mine.token_text(id) for id in mine.encode(text)] == [mine.token_text(id) for id in ids]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tekken", "aÉtéÀ 漢A12", ["a", "Été", "À", " 漢", "A", "1", "2"]),
        ("gpt-4o", "xÉté's ÀB'LL1234", ["x", "Été's", " ÀB'LL", "123", "4"]),
        ("kimi-k2", "aA's漢字Bc/\n1234", ["a", "A's", "漢字", "Bc", "/\n", "123", "4"]),
        ("deepseek-llm", "a12\n 漢", ["a", "1", "2", "\n", " ", "漢"]),
    ],
)
def test_where_llama_cpp_departs(name: str, text: str, words: list[str]) -> None:
    assert [word for word, _ in splitting(name).build().pre_tokenize_str(text)] == list(map(symbols, words))


def test_a_run_on_which_the_engine_of_patterns_gives_up_is_refused() -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(pre="tekken"))
    with pytest.raises(RequestError, match="too long for the tokenizer's pattern"):
        tokenizer.encode("A" * 10_100_000)


PUBLISHED = {  # as the models' own tokenizer files spell them
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi-k2": r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("name", PUBLISHED)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\u017f")) | st.text("aA1 \n\r\t'sSlLvVeE!.é漢\u00a0")
)
@example(text=" \n \r\n  \n x\n\n\t\n ")
@example(text="a'sa'TA'rEa'Vea'mA'LLa'dA")
def test_respelt_pattern_cuts_as_the_published_one(name: str, text: str) -> None:
    published = Sequence([Split(Regex(PUBLISHED[name]), "isolated"), ByteLevel(False, use_regex=False)])
    assert splitting(name).build().pre_tokenize_str(text) == published.pre_tokenize_str(text)


def test_space_at_the_end_is_one_word_of_deepseek_llm() -> None:
    """And no time is lost on spaces that are not at the end."""
    build = splitting("deepseek-llm").build()
    for text in ("a" + " " * 9, "\t \u00a0", "a  \r\n  ", "  \n", " " * 100_000 + "1"):
        published = [Split(Regex(r"\s+$" if "$" in p else p), "isolated") for p in splitting("deepseek-llm").patterns]
        if len(text) < 100:
            whole = Sequence([*published, ByteLevel(False, use_regex=False)])
            assert build.pre_tokenize_str(text) == whole.pre_tokenize_str(text)
        else:
            assert [place for _, place in build.pre_tokenize_str(text)] == [(0, 100_000), (100_000, 100_001)]


def test_a_run_of_spaces_longer_than_the_regex_engine_backtracks() -> None:
    text = " " * 10_100_000
    assert [place for _, place in splitting("llama-bpe").build().pre_tokenize_str(text)] == [(0, len(text))]
