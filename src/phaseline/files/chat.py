"""Conversations to prompts, through the chat template a file carries.

A template is a program from the internet. It runs in jinja2's immutable sandbox, and its loops, calls and output are
bounded, so that one that never ends becomes an error.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from phaseline.errors import RequestError
from phaseline.files.tokenizer import Tokenizer

MAX_STEPS = 1_000_000  # loop turns, calls and elements of ranges
MAX_OUTPUT = 16 << 20  # characters


def render_chat(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
) -> str:
    """The prompt for `messages` (each with "role" and "content"), as the file's template spells it.

    `add_generation_prompt` ends it where the assistant's answer begins. RequestError if the file has no template, if
    the template refuses the messages, or if it fails or runs away.
    """
    if tokenizer.chat_template is None:
        raise RequestError("the file has no chat template; --raw sends the text as it is")
    try:
        return _Sandbox().render(
            tokenizer.chat_template,
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            bos_token=_text(tokenizer, "bos"),
            eos_token=_text(tokenizer, "eos"),
        )
    except Exception as error:  # whatever a foreign program may raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise RequestError(f"the file's chat template failed: {reason}; --raw sends the text as it is") from None
