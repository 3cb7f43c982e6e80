"""From a body's words to token ids: conversations by the model's template, texts by its tokenizer.

None of it needs the event loop, and a long text takes a while: `app` calls it in a thread. What can't fit the context
is refused before its tokens are found.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from phaseline.engine.prompts import Cover
from phaseline.engine.validate import check_room
from phaseline.errors import RequestError
from phaseline.files.chat import render_chat
from phaseline.files.tokenizer import Tokenizer
from phaseline.files.tool_calls import ToolFormat, mark_ids
from phaseline.serve.door.conversation import messages_of
from phaseline.serve.door.objects import Detokenized, Piece, Tokenized
from phaseline.serve.door.problems import refused
from phaseline.serve.door.protocol import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from phaseline.serve.door.roles import Roles
from phaseline.serve.door.scores import spelling


class Prompts:
    """Token ids of what clients send, refused where `context` has no room for them. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._roles = Roles()
        self._marks: dict[ToolFormat, list[int]] = {}

    @cached_property
    def _cover(self) -> Cover:
        return Cover(self.tokenizer)

    def marks(self, format: ToolFormat) -> list[int]:
        """The tokens that mark calls."""
        if format not in self._marks:
            self._marks[format] = mark_ids(self.tokenizer, format)
        return self._marks[format]

    def completion(self, body: CompletionBody, max_tokens: int, context: int, most: int) -> list[list[int]]:
        """The ids of each prompt, of which there may be `most`. Of what came as ids only the number is looked at."""
        prompt = body.prompt
        if isinstance(prompt, str):
            return [self._encode(prompt, max_tokens, context)]
        if prompt and all(isinstance(token, int) for token in prompt):
            return [_fitting(prompt, max_tokens, context)]  # type: ignore[arg-type]
        if not prompt or len({type(one) for one in prompt}) > 1:
            raise refused("prompt", "must be a string, a list of strings, a list of token ids or a list of such lists")
        if len(prompt) > most:
            raise refused("prompt", f"{len(prompt)} prompts; the queue holds at most {most} (--max-queue)")
        return [
            self._encode(one, max_tokens, context) if isinstance(one, str) else _fitting(one, max_tokens, context)  # type: ignore[arg-type]
            for one in prompt
        ]

    def chat(
        self, body: ChatBody | TokenizeBody, functions: Sequence[Mapping[str, Any]], max_tokens: int, context: int
    ) -> list[int]:
        """The ids of a conversation that may call `functions`, up to where the answer begins."""
        if self.tokenizer.chat_template is None:
            raise refused("messages", "this model has no chat template; /v1/completions continues any text")
        render = partial(
            render_chat,
            self.tokenizer,
            tools=functions,
            add_generation_prompt=body.add_generation_prompt is not False,
            more=_own(body.chat_template_kwargs or {}),
        )
        return self._encode(self._roles.spell(messages_of(body.messages or []), render), max_tokens, context)

    def tokenize(self, body: TokenizeBody, context: int) -> Tokenized:
        """The ids of a text or conversation, with their spelling if asked for."""
        tokenizer = self.tokenizer
        if sum(given is not None for given in (body.prompt, body.messages, body.content)) != 1:
            raise refused("prompt", "give one of prompt, messages and content")
        if body.messages is not None:
            ids = self.chat(body, body.tools or (), 0, context)
        elif body.prompt is not None:
            ids = self._encode(body.prompt, 0, context, bos=body.add_special_tokens is not False)
        else:  # llama.cpp's defaults are others
            special = body.parse_special is not False
            ids = self._encode(body.content or "", 0, context, bos=bool(body.add_special), special=special)
        answer = Tokenized(len(ids), context, ids)
        if body.with_pieces:
            answer.tokens = [Piece(id, _piece(spelling(tokenizer, id))) for id in ids]
        if body.return_token_strs:
            answer.token_strs = [spelling(tokenizer, id).decode(errors="replace") for id in ids]
        return answer

    def detokenize(self, body: DetokenizeBody, context: int) -> Detokenized:
        """The text of ids, control tokens spelt out."""
        _fitting(body.tokens, 0, context)
        try:
            text = self.tokenizer.decode(body.tokens, skip_special=False)
        except RequestError as error:
            raise refused("tokens", str(error)) from None
        return Detokenized(text, text)

    def _encode(self, text: str, max_tokens: int, context: int, *, bos: bool = True, special: bool = True) -> list[int]:
        if len(text) > context:  # perhaps so long that finding its tokens is work for nothing
            fewest = self._cover.fewest(text)
            check_room(fewest, max_tokens, context, f"prompt of at least {fewest} tokens", "the context")
        return self.tokenizer.encode(text, bos=bos, special=special)


def _fitting(ids: list[int], max_tokens: int, context: int) -> list[int]:
    check_room(len(ids), max_tokens, context, f"prompt of {len(ids)} tokens", "the context")
    return ids


def _own(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Variables for the template that have no field of their own."""
    for name in ("messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt"):
        if name in variables:
            raise refused("chat_template_kwargs", f"{name} can't be set here")
    return variables


def _piece(spelt: bytes) -> str | list[int]:
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)
