"""The bound by which an immense text is refused before anyone looks for its tokens."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from phaseline.engine.prompts import Cover
from phaseline.files.tokenizer import Tokenizer
from support.hf_tokenizers import byte_level, spaced, write_folder
from support.vocab_cases import tiny_metadata, tiny_spm_metadata

WHOLE = Tokenizer.from_metadata(tiny_metadata(merges=["a b"]))
PARTIAL = Tokenizer.from_metadata(
    tiny_metadata(
        tokens=["a", "b", "ab", "<s>", "</s>", "<tool>"],
        token_type=[1, 1, 1, 3, 3, 4],
        merges=["a b"],
        bos_token_id=3,
        eos_token_id=4,
    )
)


SPM = tiny_spm_metadata({"▁": -1, "a": -2, "aa": -3})
SQUEEZED = Tokenizer.from_metadata(SPM | {"tokenizer.ggml.remove_extra_whitespaces": True})


Change = Callable[[tokenizers.Tokenizer], object]


def folder(made: tokenizers.Tokenizer, change: Change = lambda made: None) -> Tokenizer:
    change(made)
    with tempfile.TemporaryDirectory() as place:
        return Tokenizer.from_folder(write_folder(Path(place), made))


def normalized(*stages: normalizers.Normalizer) -> Change:
    return lambda made: setattr(made, "normalizer", normalizers.Sequence(list(stages)))


COMPOSED = folder(byte_level(), normalized(normalizers.NFC()))
SHORTENED = {
    "strip": folder(byte_level(), normalized(normalizers.Strip())),
    "compatible": folder(byte_level(), normalized(normalizers.NFKC())),
    "replaced": folder(byte_level(), normalized(normalizers.Replace(Regex(" +"), " "))),
    "swallowed": folder(spaced(), lambda made: made.add_tokens([AddedToken("<a>", lstrip=True, rstrip=True)])),
    "removed": folder(
        byte_level(),
        lambda made: setattr(
            made,
            "pre_tokenizer",
            pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), made.pre_tokenizer]),
        ),
    ),
}
SPACED_OUT = " " * 500 + "<a>" + " " * 500


@pytest.mark.parametrize("tokenizer", [WHOLE, PARTIAL, SQUEEZED, folder(spaced()), COMPOSED, *SHORTENED.values()])
@given(text=st.text("abc<tool>é e\u0301\uff21", max_size=60) | st.text(max_size=100))
@example(text=SPACED_OUT)
def test_no_text_has_fewer_tokens_than_its_bound(tokenizer: Tokenizer, text: str) -> None:
    assert Cover(tokenizer).fewest(text) <= len(tokenizer.encode(text))


def test_the_bound_is_of_the_text_that_tokens_spell() -> None:
    assert Cover(SQUEEZED).fewest(" " * 1000 + "aa" + " " * 1000) == 1
    assert Cover(SQUEEZED).fewest("aa" * 1000) > 100
    longest = len("<|im_end|>")
    assert Cover(COMPOSED).fewest("e\u0301" * 1000) == -(-2000 // longest)
    assert Cover(folder(spaced())).fewest("a " * 1000) == -(-2000 // longest)
    assert all(Cover(tokenizer).fewest("a" * 1000) == 0 for tokenizer in SHORTENED.values())
