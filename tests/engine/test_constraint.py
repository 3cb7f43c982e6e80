"""Constraints: whoever follows the masks, however wildly, writes what the grammar says, with any tokenizer."""

import json
import re
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.engine.constraint import Constraint, Grammars
from phaseline.engine.types import Grammar, SamplingParams
from phaseline.errors import RequestError
from phaseline.files.tokenizer import Tokenizer
from support.hf_tokenizers import byte_level, spaced, write_folder
from support.vocab_cases import tiny_metadata, tiny_spm_metadata

WORDS = {"▁": -1, "bc": -2, "ab": -3, "he": -4, "▁he": -5, "é": -6, '":': -7, "😀": -8} | dict.fromkeys('"aebchr{', -9)
MERGES = ("b c", "a b", "h e", "Ġ he", '" :', "Ã ©")
KINDS = ("bpe", "bpe_merges", "spm", "spm_no_prefix", "folder_bytes", "folder_spaced", "folder_spaced_no_prefix")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    def folder(library: Any) -> Tokenizer:
        return Tokenizer.from_folder(write_folder(tmp_path_factory.mktemp(request.param), library))

    made: dict[str, Callable[[], Tokenizer]] = {
        "bpe": lambda: Tokenizer.from_metadata(tiny_metadata()),
        "bpe_merges": lambda: Tokenizer.from_metadata(tiny_metadata(merges=MERGES)),
        "spm": lambda: Tokenizer.from_metadata(tiny_spm_metadata(WORDS)),
        "spm_no_prefix": lambda: Tokenizer.from_metadata(tiny_spm_metadata(WORDS, add_space_prefix=False)),
        "folder_bytes": lambda: folder(byte_level(MERGES)),
        "folder_spaced": lambda: folder(spaced(("b c", "a b", "h e", "▁ he"))),
        "folder_spaced_no_prefix": lambda: folder(spaced(("b c", "a b", "h e", "▁ he"), prefix=False)),
    }
    return made[request.param]()


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


@cache
def plain() -> tuple[Tokenizer, Grammars]:
    """A tokenizer of 256 bytes, for what depends on no tokenizer."""
    tokenizer = Tokenizer.from_metadata(tiny_metadata())
    return tokenizer, Grammars(tokenizer)


def schema_of(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def start(grammars: Grammars, grammar: Grammar, **params: Any) -> Constraint:
    return grammars.constraint(grammar, SamplingParams(**params))


def allowed(constraint: Constraint, tokenizer: Tokenizer) -> list[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
    assert not bits[tokenizer.vocab_size :].any()
    return np.flatnonzero(bits).tolist()


def wander(tokenizer: Tokenizer, constraint: Constraint, seed: int, most: int = 4000) -> tuple[list[int], bool]:
    """Any allowed token after the other, to the end; with whether it came to one."""
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    for _ in range(most):
        token = int(rng.choice(allowed(constraint, tokenizer)))
        constraint.advance(token)
        if token not in tokenizer.eos_ids:
            tokens.append(token)
        if token in tokenizer.eos_ids or constraint.finished:
            return tokens, True
    return tokens, False


def spelt(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """The text of tokens, none of which is a control token; UnicodeDecodeError if it is none."""
    pieces = [tokenizer.token_bytes(token) for token in tokens]
    assert all(pieces)
    return b"".join(pieces).decode()


def bounded(low: int, high: int, kind: str) -> st.SearchStrategy[dict[str, Any]]:
    numbers = st.integers(low, high)
    return st.tuples(numbers, numbers).map(lambda pair: {"type": kind, "minimum": min(pair), "maximum": max(pair)})


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "string", "pattern": "^[a-cé]{1,3}$"}),
    st.integers(0, 6).map(lambda n: {"type": "string", "maxLength": n}),
    bounded(-1000, 1000, "integer"),
    bounded(-20, 20, "number"),
    st.lists(st.text(max_size=5) | st.integers(-99, 99) | st.booleans(), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)


def compound(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def a_record(members: dict[str, Any], optional: bool) -> dict[str, Any]:
        required = list(members)[optional:]
        return {"type": "object", "properties": members, "required": required, "additionalProperties": False}

    lists = st.tuples(inner, st.integers(0, 3), st.integers(0, 2))
    return st.one_of(
        lists.map(lambda t: {"type": "array", "items": t[0], "maxItems": t[1], "minItems": min(t[1], t[2])}),
        st.builds(a_record, st.dictionaries(st.text(max_size=4), inner, max_size=3), st.booleans()),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
    )


SCHEMAS = st.recursive(LEAVES, compound, max_leaves=6)


# What comes out.


@settings(max_examples=30)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_what_follows_a_schema_validates(tokenizer: Tokenizer, grammars: Grammars, schema: Any, seed: int) -> None:
    tokens, ended = wander(tokenizer, start(grammars, schema_of(schema)), seed)
    assert ended
    value = json.loads(spelt(tokenizer, tokens))
    assert jsonschema_rs.is_valid(schema, value), (schema, value)


@pytest.mark.parametrize("seed", range(4))
def test_any_object_is_one(tokenizer: Tokenizer, grammars: Grammars, seed: int) -> None:
    tokens, ended = wander(tokenizer, start(grammars, Grammar("json_object")), seed, 20_000)
    assert ended and isinstance(json.loads(spelt(tokenizer, tokens), strict=False), dict)


@pytest.mark.parametrize(
    "pattern", [r"[äöü€😀]{5}", r"(?:he| he)+\.", r"a/b\\/c", "\x00\x7f\n", r"[0-9]{3}-[^a-y]{2,4}", "é?x"]
)
def test_an_expression_matches_the_whole_text(tokenizer: Tokenizer, grammars: Grammars, pattern: str) -> None:
    for seed in range(5):
        tokens, ended = wander(tokenizer, start(grammars, Grammar("regex", pattern)), seed)
        assert ended and re.fullmatch(pattern, spelt(tokenizer, tokens))


CHOICES = ["yes", "he he", "né😀", '"quoted"\\', "two\nlines", "", "/[a]+/ | b"]


def test_one_of_the_choices(tokenizer: Tokenizer, grammars: Grammars) -> None:
    one = start(grammars, Grammar("choice", json.dumps(CHOICES)))
    found = {spelt(tokenizer, wander(tokenizer, one.fork(), seed)[0]) for seed in range(300)}
    assert found == set(CHOICES)


def test_a_lark_grammar(tokenizer: Tokenizer, grammars: Grammars) -> None:
    lark = 'start: item ("," item)*\nitem: "(" start ")" | /[a-c]{2}/'
    tokens, _ = wander(tokenizer, start(grammars, Grammar("lark", lark)), 3, 60)
    text = spelt(tokenizer, tokens)
    while (shorter := re.sub(r"\([a-c,]+\)", "aa", text)) != text:
        text = shorter
    assert re.fullmatch("[a-c(),]*", text)


def test_forced_text_is_spelt_as_the_tokenizer_would(tokenizer: Tokenizer, grammars: Grammars) -> None:
    tokens, _ = wander(tokenizer, start(grammars, Grammar("choice", '["abc"]')), 0)
    merged = b"bc" in map(tokenizer.token_bytes, range(tokenizer.vocab_size))
    pieces = [b"a", b"bc"] if merged else [b"a", b"b", b"c"]  # not what is longest from the left, "ab"
    assert [tokenizer.token_bytes(token) for token in tokens] == pieces


# Where it may end.


def test_control_tokens_are_never_allowed_and_end_tokens_only_at_an_end(
    tokenizer: Tokenizer, grammars: Grammars
) -> None:
    anything = start(grammars, Grammar("regex", "(?s:.*)"))
    ids = allowed(anything, tokenizer)
    assert tokenizer.eos_ids <= {*ids}
    assert all(tokenizer.token_bytes(id) for id in ids if id not in tokenizer.eos_ids)
    one = start(grammars, Grammar("regex", "xy?"))
    first = allowed(one, tokenizer)
    assert {tokenizer.token_bytes(id) for id in first} == {b"x"}
    one.advance(first[0])
    second = allowed(one, tokenizer)
    assert tokenizer.eos_ids < {*second} and not one.finished
    one.advance(next(id for id in second if tokenizer.token_bytes(id) == b"y"))
    assert one.finished


def test_what_may_end_goes_on_while_it_is_asked_to(tokenizer: Tokenizer, grammars: Grammars) -> None:
    ends = tokenizer.eos_ids
    for params, ending in (({"ignore_eos": True}, [False] * 4), ({"min_tokens": 3}, [False] * 3 + [True])):
        one = start(grammars, Grammar("regex", "a+"), **params)
        for expected in ending:
            ids = allowed(one, tokenizer)
            assert (ends <= {*ids}) is expected
            one.advance(next(id for id in ids if id not in ends))
    only_empty = start(grammars, Grammar("choice", '[""]'), ignore_eos=True, min_tokens=2)
    assert {*allowed(only_empty, tokenizer)} == ends


def test_stop_ids_wait_like_end_tokens() -> None:
    tokenizer, grammars = plain()
    a, b = (tokenizer.encode(letter)[0] for letter in "ab")
    one = start(grammars, Grammar("regex", "[ab]+"), min_tokens=2, ignore_eos=True, stop_ids=[a])
    seen = []
    for _ in range(3):
        seen.append(allowed(one, tokenizer))
        one.advance(b)
    assert seen == [[b], [b], [a, b]]


def test_an_end_token_that_is_also_text_ends_and_spells_nothing() -> None:
    meta = tiny_metadata()
    meta["tokenizer.ggml.eos_token_id"] = len(meta["tokenizer.ggml.tokens"]) - 1  # user-defined
    tokenizer = Tokenizer.from_metadata(meta)
    assert [tokenizer.token_bytes(id) for id in tokenizer.eos_ids] == [b"<tool>"]
    one = start(Grammars(tokenizer), Grammar("regex", "<tool>!"))
    ids = allowed(one, tokenizer)
    assert [tokenizer.token_bytes(id) for id in ids] == [b"<"]


def test_without_an_end_token_a_text_ends_where_it_must() -> None:
    tokenizer = Tokenizer.from_metadata(tiny_metadata(eos_token_id=None))
    assert not tokenizer.eos_ids
    tokens, ended = wander(tokenizer, start(Grammars(tokenizer), schema_of({"enum": [[1, "é"]]})), 0)
    assert ended and json.loads(spelt(tokenizer, tokens)) == [1, "é"]


def test_forks_go_their_own_ways() -> None:
    tokenizer, grammars = plain()
    one = start(grammars, Grammar("choice", '["ab", "cd"]'))
    other = one.fork()
    one.advance(tokenizer.encode("a")[0])
    assert [tokenizer.token_bytes(id) for id in allowed(one, tokenizer)] == [b"b"]
    assert [tokenizer.token_bytes(id) for id in allowed(other, tokenizer)] == [b"a", b"c"]
    assert [tokenizer.token_bytes(id) for id in allowed(one.fork(), tokenizer)] == [b"b"]


def test_spaces_between_tokens_of_json_do_not_go_on_for_ever() -> None:
    tokenizer, grammars = plain()
    one = start(grammars, Grammar("json_object"))
    space = tokenizer.encode(" ")[0]
    one.advance(tokenizer.encode("{")[0])
    for _ in range(40):
        assert space in allowed(one, tokenizer)
        one.advance(space)
    assert {tokenizer.token_bytes(id) for id in allowed(one, tokenizer)} == {b'"', b"}"}


def test_compiling_in_several_threads() -> None:
    tokenizer, grammars = plain()
    found: list[str] = []

    def compile_one(n: int) -> None:
        tokens, _ = wander(tokenizer, start(grammars, Grammar("choice", json.dumps([f"thread {n}"]))), 0)
        found.append(spelt(tokenizer, tokens))

    threads = [threading.Thread(target=compile_one, args=(n,)) for n in range(8)]
    usual = threading.stack_size()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"thread {n}" for n in range(8)] and threading.stack_size() == usual


# What is refused.


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


REFUSED = {
    "json": (Grammar("json_schema", "{"), "Expecting"),
    "nan": (Grammar("json_schema", '{"const": NaN}'), "NaN is no number"),
    "digits": (Grammar("json_schema", '{"maximum": %s}' % ("9" * 5000)), "digits"),
    "large": (Grammar("json_schema", '{"type": "integer", "minimum": 1e999}'), "Out of range"),
    "surrogate": (Grammar("json_schema", '{"const": "\\ud800"}'), "escape"),
    "a list": (Grammar("json_schema", "[]"), "must be a JSON object"),
    "a boolean": (Grammar("json_schema", "true"), "must be a JSON object"),
    "deep": (Grammar("json_schema", nested(200)), "recursion limit"),
    "deeper": (Grammar("json_schema", "[" * 2**16), "recursion"),
    "type": (schema_of({"type": "strange"}), "strange"),
    "not": (schema_of({"type": "object", "not": {"required": ["a"]}}), 'Unimplemented keys: \\["not"\\]'),
    "unique": (schema_of({"type": "array", "uniqueItems": True}), "uniqueItems"),
    "format": (schema_of({"type": "string", "format": "colour"}), "Unknown format: colour"),
    "one of": (schema_of({"oneOf": [{"type": "string"}, {"maxLength": 3}]}), "oneOf"),
    "no way": (schema_of({"type": "string", "minLength": 5, "maxLength": 2}), "Unsatisfiable"),
    "empty enum": (schema_of({"enum": []}), "Unsatisfiable"),
    "itself": (schema_of({"$ref": "#"}), "nothing that this model's vocabulary can spell"),
    "elsewhere": (schema_of({"$ref": "http://127.0.0.1:9/schema.json"}), "does not fetch"),
    "a file": (schema_of({"$ref": "file:///etc/passwd"}), "does not fetch"),
    "members": (schema_of({"properties": {str(n): {} for n in range(401)}}), "401 members; .* at most 400"),
    "lookahead": (Grammar("regex", "(?=a)b"), "look"),
    "parentheses": (Grammar("regex", "(" * 4000), "regex"),
    "repetition": (Grammar("regex", r"(\p{L}|" * 200 + ")" * 200), ""),
    "no list": (Grammar("choice", '"yes"'), "JSON list of strings"),
    "no choices": (Grammar("choice", "[]"), "JSON list of strings"),
    "numbers": (Grammar("choice", "[1]"), "JSON list of strings"),
    "lark": (Grammar("lark", "start: ("), "Expected"),
    "no start": (Grammar("lark", 'a: "b"'), "start"),
    "unknown rule": (Grammar("lark", "start: a"), "unknown"),
    "unknown mark": (Grammar("lark", 'start: <|nobody|> "a"'), "unknown special token"),
    "doubling": (Grammar("lark", "start: A0\n" + "".join(f"A{n}: A{n + 1} A{n + 1}\n" for n in range(60))), ""),
    "deep lark": (Grammar("lark", "start: " + "(" * 4000), "nested"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_not_be_followed_is_refused_with_the_reason(name: str) -> None:
    grammar, reason = REFUSED[name]
    with pytest.raises(RequestError, match=f"^grammar {grammar.kind}: .*{reason}") as refusal:
        start(plain()[1], grammar)
    assert len(str(refusal.value)) < 400 and "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["é", "abé", "a\x01b", "ab"])
def test_what_the_vocabulary_can_not_spell_is_refused_at_once(text: str) -> None:
    tokens = ["<s>", "</s>", "<unk>", "▁", "a", "b"]  # no bytes
    meta = tiny_spm_metadata(tokens=tokens, scores=[0.0] * 6, token_type=[3, 3, 2, 1, 1, 1])
    tokenizer = Tokenizer.from_metadata(meta)
    choice, grammars = Grammar("choice", json.dumps([text])), Grammars(tokenizer)
    if text == "ab":
        assert spelt(tokenizer, wander(tokenizer, start(grammars, choice), 0)[0]) == text
    else:
        with pytest.raises(RequestError, match="nothing that this model's vocabulary can spell matches it"):
            start(grammars, choice)


WRAPS = {
    "allOf": ('{"allOf":[', "]}"),
    "anyOf": ('{"anyOf":[', ',{"type":"null"}]}'),
    "items": ('{"type":"array","minItems":1,"items":', "}"),
    "prefixItems": ('{"type":"array","prefixItems":[', "]}"),
    "properties": ('{"type":"object","required":["a"],"properties":{"a":', "}}"),
}


def chain(count: int, wrap: tuple[str, str]) -> str:
    """A schema whose definitions refer to one another, each as deep as one may be."""

    def body(inner: str) -> str:
        return wrap[0] * 30 + inner + wrap[1] * 30

    links = [f'"{n}":{body(f"""{{"$ref":"#/$defs/{n + 1}"}}""")}' for n in range(count)]
    return f'{{"$defs":{{{",".join(links)},"{count}":{{"type":"string"}}}},"$ref":"#/$defs/0"}}'


@pytest.mark.parametrize("wrap", WRAPS)
def test_the_deepest_schemas_do_not_exhaust_the_stack(wrap: str) -> None:
    each = len(chain(101, WRAPS[wrap])) - len(chain(100, WRAPS[wrap]))
    text = chain(2**16 // each - 1, WRAPS[wrap])
    assert 60_000 < len(text) <= 2**16
    tokenizer, grammars = plain()
    wander(tokenizer, start(grammars, Grammar("json_schema", text)), 0, 20)


@pytest.mark.parametrize("name", ["x", "X"])  # rules; terminals
def test_the_longest_chain_of_rules_does_not_exhaust_the_stack(name: str) -> None:
    tokenizer, grammars = plain()
    chain = "".join(f"{name}{n}:{name}{n + 1}\n" for n in range(5400))
    lark = f'start: {name}0\n{chain}{name}5400:"x"'
    assert 60_000 < len(lark) <= 2**16
    assert spelt(tokenizer, wander(tokenizer, start(grammars, Grammar("lark", lark)), 0)[0]) == "x"


def test_what_turns_out_too_complex_later_says_so_then() -> None:
    tokenizer, grammars = plain()
    one = start(grammars, Grammar("regex", r"(\p{L}{1,50}){1,50}"))
    with pytest.raises(RequestError, match=r"^grammar regex: .*too many"):
        wander(tokenizer, one, 0)
    with pytest.raises(RequestError, match="too many"):
        one.mask()
    assert not one.finished
