"""From a body to everything that is needed to answer it; nothing here waits, so that it can run in a thread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phaseline.engine.types import Request, SamplingParams
from phaseline.engine.validate import validate_params
from phaseline.serve.door.answers import ChatGrowing, Growing, TextGrowing
from phaseline.serve.door.conversation import Tools, tools_of
from phaseline.serve.door.envelope import Envelope
from phaseline.serve.door.grammars import calls
from phaseline.serve.door.params import chat_limit, chat_params, completion_params, priority, salt
from phaseline.serve.door.problems import Problem, refused
from phaseline.serve.door.prompts import Prompts
from phaseline.serve.door.protocol import ChatBody, CompletionBody, Generation

_MOST_IDS = 1 << 17  # biases and stops of all prompts of a body, each of which takes its own to the engine


@dataclass(frozen=True, slots=True)
class Asked:
    """`requests`: one for each prompt. `choices`: n for each of them, in this order."""

    envelope: Envelope
    requests: Sequence[Request]
    choices: Sequence[Growing]
    chat: bool
    stream: bool
    usage: bool  # a chunk of it at the end
    running_usage: bool  # in every chunk
    prompt_ids: bool  # beside the choices of a whole answer

    @property
    def n(self) -> int:
        """Choices of each prompt."""
        return self.requests[0].params.n


class Asking:
    """Reads bodies for one model, which clients call `model`, which holds `context` tokens and takes up to
    `most_prompts` at once. Each `key` shares prefixes with itself alone.
    """

    def __init__(self, prompts: Prompts, model: str, context: int, most_prompts: int) -> None:
        self._prompts, self._tokenizer = prompts, prompts.tokenizer
        self._model, self._context, self._most_prompts = model, context, most_prompts

    def completion(self, body: CompletionBody, key: str | None) -> Asked:
        """What a body of `/v1/completions` asks for."""
        params = completion_params(body)
        validate_params(params, vocab=self._tokenizer.vocab_size)
        prompts = self._prompts.completion(body, params.max_tokens, self._context, self._most_prompts)
        self._check_room("max_tokens", body.max_tokens, prompts)
        choices = [
            TextGrowing(
                self._tokenizer,
                number * params.n + index,
                prompt,
                echo=self._tokenizer.decode(prompt) if body.echo else None,
                scored=body.logprobs is not None,
                ids=bool(body.return_token_ids),
            )
            for number, prompt in enumerate(prompts)
            for index in range(params.n)
        ]
        envelope = Envelope("text_completion", self._model, "cmpl")
        return self._asked(body, key, envelope, prompts, params, choices)

    def chat(self, body: ChatBody, key: str | None) -> Asked:
        """What a body of `/v1/chat/completions` asks for."""
        params = chat_params(body, context=self._context)
        validate_params(params, vocab=self._tokenizer.vocab_size)
        if tools := tools_of(body, self._tokenizer.chat_template):
            params = self._calling(params, tools, several=body.parallel_tool_calls is not False)
        prompt = self._prompts.chat(body, tools.functions if tools else (), params.max_tokens, self._context)
        self._check_room(*chat_limit(body), [prompt])
        choices = [
            ChatGrowing(
                self._tokenizer,
                index,
                format=tools.format if tools else None,
                parallel=body.parallel_tool_calls is not False,
                scored=bool(body.logprobs),
                ids=bool(body.return_token_ids),
            )
            for index in range(params.n)
        ]
        envelope = Envelope("chat.completion.chunk", self._model, "chatcmpl")
        return self._asked(body, key, envelope, [prompt], params, choices)

    def _check_room(self, name: str, limit: int | None, prompts: Sequence[Sequence[int]]) -> None:
        """An answer that could never become as long as was asked for is refused, as OpenAI and vLLM do. That a prompt
        itself has no room is the engine's to say.
        """
        longest = max(map(len, prompts))
        room = self._context - longest
        if limit is not None and 0 < room < limit:
            message = f"{name} = {limit}: a context of {self._context} has room for {room} after"
            raise Problem(400, f"{message} a prompt of {longest} tokens", param=name, code="context_length_exceeded")

    def _calling(self, params: SamplingParams, tools: Tools, *, several: bool) -> SamplingParams:
        """So that calls can be seen in the text, and what must be called is."""
        marks = self._prompts.marks(tools.format)
        if params.grammar is not None:
            raise refused("response_format", "can't go with tools: the text would be either a call or of that format")
        return replace(params, spelt_ids=marks, grammar=calls(tools, marks, self._tokenizer, several=several))

    def _asked(
        self,
        body: Generation,
        key: str | None,
        envelope: Envelope,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        choices: Sequence[Growing],
    ) -> Asked:
        ids = len(prompts) * (len(params.logit_bias) + len(params.stop_ids))
        if ids > _MOST_IDS:
            name = "logit_bias" if params.logit_bias else "stop_token_ids"
            raise refused(name, f"{ids} tokens for {len(prompts)} prompts: at most {_MOST_IDS} are taken of a body")
        own, first, told = salt(key, body.cache_salt), priority(body), bool(body.return_progress and body.stream)
        options = body.stream_options
        return Asked(
            envelope,
            [Request(f"{envelope.id}-{n}", prompt, params, own, first, told) for n, prompt in enumerate(prompts)],
            choices,
            chat=isinstance(body, ChatBody),
            stream=bool(body.stream),
            usage=bool(options and options.include_usage),
            running_usage=bool(options and options.include_usage and options.continuous_usage_stats),
            prompt_ids=bool(body.return_token_ids),
        )
