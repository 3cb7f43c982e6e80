"""What clients send: one struct per body, decoded straight from its bytes. Unknown fields are ignored.

A field that is null is as if it were absent. Ranges are the engine's to check; here are types alone. Fields that would
change an answer and are not supported are named, so that `params` can refuse them.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

Tokens = list[int]
# As templates want them; `conversation` says by name what is wrong with one.
_CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}
_MESSAGE = {"required": ["role"], "properties": {"role": {"type": "string"}, "content": _CONTENT}}
Unsupported = Annotated[Any, Meta(extra_json_schema={"type": "null"})]  # whatever it is
MessageBody = Annotated[dict[str, Any], Meta(extra_json_schema=_MESSAGE)]


class StreamOptions(Struct):
    """`continuous_usage_stats`: usage in every chunk, as vLLM spells it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(Struct):
    """`type`: text, json_object (with llama.cpp's `schema`, if it is there) or json_schema."""

    type: str
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class StructuredOutputs(Struct):
    """vLLM's way to constrain a text; `grammar` in llguidance's dialect of Lark."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Generation(Struct, kw_only=True):
    """What both endpoints that generate accept."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Tokens | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_progress: bool | None = None
    return_token_ids: bool | None = None
    use_beam_search: bool | None = None
    guided_json: Unsupported = None
    guided_regex: Unsupported = None
    guided_choice: Unsupported = None
    guided_grammar: Unsupported = None
    grammar: Unsupported = None
    json_schema: Unsupported = None
    n_predict: Unsupported = None


class CompletionBody(Generation, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | Tokens]
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None


class ChatBody(Generation, kw_only=True):
    """`POST /v1/chat/completions`. Messages and tools go to the model's template as they come, but for what
    `prompts` normalises.
    """

    messages: list[MessageBody]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None


class TokenizeBody(Struct, kw_only=True):
    """`POST /tokenize`: a `prompt` or `messages` as vLLM has them, or llama.cpp's `content`."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: list[MessageBody] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: Tokens
    model: str | None = None
