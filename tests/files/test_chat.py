"""Chat templates against transformers' rendering, and templates that misbehave."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from phaseline.errors import RequestError
from phaseline.files.chat import render_chat
from phaseline.files.gguf import open_gguf
from phaseline.files.tokenizer import Tokenizer
from support.vocab_cases import tiny_metadata

CONVERSATION = [
    {"role": "system", "content": 'Be brief, <b>& "exact"</b>; it\'s 漢字.'},
    {"role": "user", "content": "  Hi\n{{ messages }}  "},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "{% raw %}é🦙"},
]
TEMPLATES = [
    "{{ 'a' ~ 1 ~ none ~ messages[0].role }}{{ messages[1:] | length }}{{ 'abc'[::-1] }}{{ [1, 2] + [3] }}{{ 7 % 3 }}"
    "{{ '%s-%5.1f|' % ('x', 2) }}{{ '{:>4}{a}'.format(1, a=2) }}{{ messages | map(attribute='role') | join(', ') }}"
    "{{ 'a,b'.split(',') | join(d='+') }}{{ 'ab'.replace('a', 'c') | indent(2, true) | center(9) }}{{ 2 ** 10 }}"
    "{% set x %}[{{ messages[0].content | trim | length }}]{% endset %}{{ x * 2 }}{{ {'a': 1}.items() | list }}",
    "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m['content'] | trim }}]{% endif %}\n"
    "  {%- if loop.last %}{{ eos_token }}{% endif %}\n{% endfor %}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ loop.length }}{{ m.content }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "{% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}"
    "{% if add_generation_prompt %}go{% endif %}{{ undefined_name }}",
    "{% set ns = namespace(n=0) %}{% for m in messages if m.content %}{% set ns.n = ns.n + loop.index %}{% endfor %}"
    "{{ ns.n }}{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(messages[-1].role) }}"
    "{% for i in range(3) %}{{ i }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ strftime_now('%Y') | length }}",
]


def with_template(template: str, **keys: Any) -> Tokenizer:
    return Tokenizer.from_metadata(tiny_metadata(**keys) | {"tokenizer.chat_template": template})


def reference(template: str, add_generation_prompt: bool, **variables: Any) -> str:
    rendered, _ = render_jinja_template(
        [CONVERSATION], chat_template=template, add_generation_prompt=add_generation_prompt, **variables
    )
    return str(rendered[0])


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("template", TEMPLATES)
def test_renders_as_transformers_does(template: str, add_generation_prompt: bool) -> None:
    mine = render_chat(with_template(template), CONVERSATION, add_generation_prompt=add_generation_prompt)
    assert mine == reference(template, add_generation_prompt, bos_token="<s>", eos_token="</s>")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"é": {}}}}}


@pytest.mark.parametrize("tools", [None, [], [TOOL], [TOOL, TOOL]])
def test_tools_reach_the_template(tools: list[Any] | None) -> None:
    template = (
        "{% if tools is not none %}{% for t in tools %}{{ t.function.name }} {{ t | tojson }}{% endfor %}{% endif %}."
    )
    mine = render_chat(with_template(template), CONVERSATION, tools=tools)
    assert mine == reference(template, True, tools=tools or None)


def test_smollm2(smollm2_path: Path) -> None:
    tokenizer = Tokenizer.from_metadata(open_gguf(smollm2_path).metadata)
    assert tokenizer.chat_template is not None
    prompt = render_chat(tokenizer, CONVERSATION)
    assert prompt == reference(tokenizer.chat_template, True)
    turns = tokenizer.encode(prompt)
    assert turns.count(tokenizer.encode("<|im_start|>")[0]) == len(CONVERSATION) + 1  # and the answer's


def test_a_template_that_writes_bos_makes_one_bos() -> None:
    tokenizer = with_template("{{ bos_token }}{{ messages[0].content }}", add_bos_token=True)
    ids = tokenizer.encode(render_chat(tokenizer, [{"role": "user", "content": "Hi"}]))
    assert [tokenizer.token_text(id) for id in ids] == ["<s>", "H", "i"]


def test_tokens_the_file_does_not_name_are_empty() -> None:
    tokenizer = with_template("[{{ bos_token }}{{ eos_token }}]", bos_token_id=None, eos_token_id=None)
    assert render_chat(tokenizer, CONVERSATION) == "[]"


def test_no_template() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        render_chat(Tokenizer.from_metadata(tiny_metadata()), CONVERSATION)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('system role\nnot supported') }}", "system role"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].nothing.more }}", "no attribute 'nothing'"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ messages + 1 }}", "list"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{% include 'other' %}", "loader"),
    ],
)
def test_a_failing_template_is_one_line(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match=rf"chat template failed: .*{reason}") as refused:
        render_chat(with_template(template), CONVERSATION)
    assert "\n" not in str(refused.value)


LONG = "{% for i in 'x' * 99999 %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (f"{LONG}{LONG}{{% set x = i %}}{{% endfor %}}{{% endfor %}}", "steps"),
        ("{% for i in range(9999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}", "steps"),
        ("{% for i in range(999) recursive %}{{ loop(range(999)) if loop.depth < 9 }}{% endfor %}", "steps"),
        (f"{{% macro f() %}}{LONG}{{% endfor %}}{{% endmacro %}}{LONG}{{{{ f() }}}}{{% endfor %}}", "steps"),
        ("{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{% for i in range(999999) %}{% endfor %}", "[Rr]ange"),
        ("{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}", "output is longer"),
    ],
)
def test_a_runaway_template_is_stopped(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match=f"chat template failed: .*{reason}"):
        render_chat(with_template(template), CONVERSATION)


DOUBLE = "{% set ns = namespace(x='ab') %}{% for i in range(40) %}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 9**(9**9) }}",
        "{{ 2**9999999 * 2**9999999 }}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 'a' * 9999999999 }}",
        "{{ 9999999999 * [1] }}",
        f"{DOUBLE}{{% set ns.x = ns.x + ns.x %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = ns.x ~ ns.x %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = [ns.x, ns.x] | join %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = 'x'.join([ns.x, ns.x]) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = '%s%s' % (ns.x, ns.x) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = '%s%s' | format(ns.x, ns.x) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = '{{0}}{{0}}'.format(ns.x) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = '{{a}}{{a}}'.format_map({{'a': ns.x}}) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = ns.x.replace('b', ns.x) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = ns.x | replace('b', ns.x) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set y %}}{{{{ ns.x }}}}{{{{ ns.x }}}}{{% endset %}}{{% set ns.x = y %}}{{% endfor %}}",
        f"{{% macro f(x) %}}{{{{ x }}}}{{{{ x }}}}{{% endmacro %}}{DOUBLE}{{% set ns.x = f(ns.x) %}}{{% endfor %}}",
        f"{DOUBLE}{{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}{{{{ ns.x }}}}",
        f"{DOUBLE}{{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}{{{{ ns.x | tojson }}}}",
        f"{DOUBLE}{{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}{{{{ ns.x ~ '' }}}}",
        "{% set x = 'x' * 9999999 %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(99999) %}{% set ns.l = [ns.l, x[1:]] %}{% endfor %}",
        "{{ 'x' | center(10**9) }}",
        "{{ ['x'] | map('center', 10**9) | list }}",
        "{{ 'x\nx' | indent(10**9) }}",
        "{{ [1] | batch(10**9, 0) | list }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x'['rjust'](10**9) }}",
        "{{ 'x'.zfill(10**9) }}",
        "{{ '\t'.expandtabs(10**9) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%.1000000000f' | format(1.5) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
    ],
)
def test_a_template_that_would_take_all_memory_is_stopped(template: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=r"failed: it (makes values|computes with integers) of more"):
            render_chat(with_template(template), CONVERSATION)
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("template", ["{{ [1] | tojson(indent=10**9) }}", "{{ lipsum(10**9) }}"])
def test_other_ways_to_take_all_memory_are_refused(template: str) -> None:
    with pytest.raises(RequestError, match=r"chat template failed: .*(indents|lipsum)"):
        render_chat(with_template(template), CONVERSATION)


def test_a_long_conversation_is_no_runaway() -> None:
    messages = [{"role": "user", "content": "word " * 50}] * 5000
    template = "{% for m in messages %}{% for w in m.content.split(' ')[:9] %}{{ w | upper }}{% endfor %}{% endfor %}"
    assert render_chat(with_template(template), messages) == "WORD" * 9 * 5000
