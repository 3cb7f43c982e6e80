r"""How text is cut into words before byte-pair merging: one row per rule a GGUF file can name.

The patterns are facts of the vocabularies, whose merges were learnt on words cut exactly so. Two parts are spelt in
an equivalent form: contractions list both cases, and `\s*[\r\n]+` does without backtracking, because the regex
engine of `tokenizers` gives up on a run of ten million spaces otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from phaseline.errors import UnsupportedError

_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASELESS = (  # like GPT-2's, but for contractions in either case, words with any one leading sign, and line ends
    r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,MOST_DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|(?:[^\S\r\n]*+[\r\n]+)+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Splitting:
    """`patterns` apply one after the other, each to the pieces the ones before it left.

    `whole_words`: a word that is in the vocabulary is that token, whatever the merges would make of it.
    `add_bos`: whether prompts begin with BOS in a file that does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> PreTokenizer:
        """The library's pre-tokenizer: the patterns, then every byte as its printable stand-in."""
        splits = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITTINGS: Mapping[str, Splitting] = MappingProxyType(
    dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), Splitting((_GPT2,)))
    | dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), Splitting((_DIGIT, _GPT2)))
    | dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), Splitting((_CASELESS.replace("MOST_DIGITS", "1"),)))
    | dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3"),
        Splitting((_CASELESS.replace("MOST_DIGITS", "3"),), whole_words=True, add_bos=True),
    )
)


def splitting(name: str) -> Splitting:
    """The rule that `tokenizer.ggml.pre` names; UnsupportedError for an unknown one."""
    if name not in SPLITTINGS:
        supported = ", ".join(sorted(SPLITTINGS))
        raise UnsupportedError(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported: {supported}")
    return SPLITTINGS[name]
