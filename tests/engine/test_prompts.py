"""The bound by which an immense text is refused before anyone looks for its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.engine.prompts import Cover
from phaseline.files.tokenizer import Tokenizer
from support.vocab_cases import tiny_metadata

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


@pytest.mark.parametrize("tokenizer", [WHOLE, PARTIAL])
@given(text=st.text("abc<tool>é", max_size=60) | st.text(max_size=100))
def test_no_text_has_fewer_tokens_than_its_bound(tokenizer: Tokenizer, text: str) -> None:
    assert Cover(tokenizer).fewest(text) <= len(tokenizer.encode(text))
