r"""How text is cut into words before byte-pair merging: one row per rule a GGUF file can name.

The patterns are facts of the vocabularies, whose merges were learnt on words cut exactly so. Three parts are spelt in
an equivalent form: contractions list both cases, and `\s*[\r\n]+` and `\s+$` do without backtracking, because the
regex engine of `tokenizers` gives up on a run of ten million spaces, or looks for the end from each of them, otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from phaseline.errors import UnsupportedError

_DIGIT = r"\p{N}"
_CONTRACTED = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
_SPACES = r"|(?:[^\S\r\n]*+[\r\n]+)+|\s+(?!\S)|\s+"  # up to the line's end, up to a word, others
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _caseless(digits: int) -> str:
    """Like GPT-2's, but for contractions in either case, words with any one leading sign, and line ends."""
    word = rf"{_CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,{digits}}}"
    return rf"{word}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"


def _cased(digits: int, *, ending: str = "", without: str = "", sign_end: str = r"[\r\n/]*") -> str:
    """Words break where a capital follows a small letter, and may end in `ending`; no letter is of class `without`."""
    upper, lower = (rf"[{kinds}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
    lead = r"[^\r\n\p{L}\p{N}]?"
    word = rf"{lead}{upper}*{lower}+{ending}|{lead}{upper}+{lower}*{ending}|\p{{N}}{{1,{digits}}}"
    return rf"{word}| ?[^\s\p{{L}}\p{{N}}]+{sign_end}{_SPACES}"


def _ranges(points: str) -> str:
    """A class of characters, from ranges of code points in hexadecimal."""
    ends = (span.split("-") for span in points.split())
    return "[" + "".join("-".join(rf"\x{{{end}}}" for end in span) for span in ends) + "]"


# Letters with a case, most of those that Unicode has; then punctuation; then Chinese, Korean and what lies between.
_DEEPSEEK_LETTERS = _ranges(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F "
    "104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_SIGNS = _ranges("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_HAN = _ranges("4E00-9FA5 800-4E00 AC00-D7FF")
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_DEEPSEEK_LETTERS}+",
    rf"\s?{_DEEPSEEK_SIGNS}+",
    r"(?<!\s)\s++$",
    _DEEPSEEK_HAN + "+",
    _DIGIT,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN + "+", _DIGIT)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    _ranges("4E00-9FA5 3040-309F 30A0-30FF") + "+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    + _SPACES,
)
_KIMI = r"\p{Han}+|" + _cased(3, ending=f"(?:{_CONTRACTED})?", without=r"&&[^\p{Han}]", sign_end=r"[\r\n]*")


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


_RULES: Mapping[Splitting, tuple[str, ...]] = {
    Splitting((_GPT2,)): ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "mellum"),
    Splitting((_DIGIT, _GPT2)): ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    Splitting((_caseless(1),)): ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"),
    Splitting((_caseless(3),)): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    Splitting((_caseless(3),), whole_words=True, add_bos=True): (
        "llama-bpe",
        "llama3",
        "llama-v3",
        "falcon3",
        "pixtral",
    ),
    Splitting(_DEEPSEEK_LLM): ("deepseek-llm",),
    Splitting(_DEEPSEEK_CODER): ("deepseek-coder",),
    Splitting(_DEEPSEEK_V3): ("deepseek-v3",),
    Splitting((_cased(1),), whole_words=True, add_bos=True): ("tekken",),
    Splitting((_cased(3, ending=f"(?:{_CONTRACTED})?"),)): ("gpt-4o", "llama4"),
    Splitting((_KIMI,), whole_words=True): ("kimi-k2",),
}
SPLITTINGS: Mapping[str, Splitting] = MappingProxyType({name: rule for rule, names in _RULES.items() for name in names})


def splitting(name: str) -> Splitting:
    """The rule that `tokenizer.ggml.pre` names; UnsupportedError for an unknown one."""
    if name not in SPLITTINGS:
        supported = ", ".join(sorted(SPLITTINGS))
        raise UnsupportedError(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported: {supported}")
    return SPLITTINGS[name]
