"""Calls that must be made, in every format: what the grammar lets a model say is read back as those calls."""

import json
from pathlib import Path
from typing import Any

import pytest

from phaseline import SamplingParams, load
from phaseline.files.tool_calls import ToolCallStream, ToolFormat, mark_ids
from phaseline.serve.door.conversation import Tools
from phaseline.serve.door.grammars import calls
from support.parrot import write_parrot
from support.tiny import CHAT_TEMPLATE

YES = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"],
    "additionalProperties": False,
}
FUNCTIONS: list[Any] = [{"type": "function", "function": {"name": name, "parameters": YES}} for name in ("f.1", "g")]


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_what_must_be_called_is_what_is_read(tmp_path: Path, format: ToolFormat, control: bool, several: bool) -> None:
    marks = [mark for mark in format.value if mark]
    model = write_parrot(tmp_path / "m.gguf", marks, control=marks if control else (), template=CHAT_TEMPLATE)
    with load(model, threads=1) as engine:
        tokenizer = engine.tokenizer
        assert tokenizer
        ids = mark_ids(tokenizer, format)
        grammar = calls(Tools(FUNCTIONS, format, FUNCTIONS), ids, tokenizer, several=several)
        for seed in range(4):
            params = SamplingParams(max_tokens=300, temperature=1.0, seed=seed, grammar=grammar, spelt_ids=ids)
            text = engine.generate("do", params).text
            stream = ToolCallStream(format)
            found = [stream.push(text), stream.finish()]
            said = "".join(rest for rest, _ in found)
            made = [call for _, some in found for call in some]
            assert said.strip() == "" and made and (several or len(made) == 1), text
            assert {call.name for call in made} <= {"f.1", "g"}
            assert all(set(json.loads(call.arguments)) == {"sure"} for call in made)
