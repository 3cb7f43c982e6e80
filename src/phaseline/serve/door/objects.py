"""What clients get: OpenAI's objects as structs, encoded by msgspec without a detour. Absent where UNSET."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType

_Choice = TypeVar("_Choice", bound=Struct)


class PromptTokensDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(Struct):
    """As llama.cpp's server states them: prompt tokens that were read, not those found in the cache."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class PromptProgress(Struct):
    """As llama.cpp's server states it; `processed` counts from the prompt's start, `cache` included."""

    total: int
    cache: int
    processed: int
    time_ms: float


class LegacyLogprobs(Struct):
    """One entry per token in each list; null where a prompt's first token has none."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class TextChoice(Struct):
    """Of a chunk or of a whole answer."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ChatLogprob]


class Function(Struct):
    name: str
    arguments: str


class ToolCallPart(Struct):
    """A whole call; `index` is there in chunks alone."""

    index: int | UnsetType
    id: str
    function: Function
    type: str = "function"


class Message(Struct):
    content: str | None
    tool_calls: list[ToolCallPart] | UnsetType = UNSET
    role: str = "assistant"


class ChatChoice(Struct):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class Answer(Struct, Generic[_Choice]):
    """A whole one, of either endpoint."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[_Choice]
    usage: Usage
    timings: Timings
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class Model(Struct):
    id: str
    created: int
    max_model_len: int
    owned_by: str = "phaseline"
    object: str = "model"


class Models(Struct):
    data: list[Model]
    object: str = "list"


class Piece(Struct):
    """A token as llama.cpp's `with_pieces` has it: text, or bytes that are not UTF-8."""

    id: int
    piece: str | list[int]


class Tokenized(Struct):
    """vLLM's answer of `/tokenize`, a superset of llama.cpp's."""

    count: int
    max_model_len: int
    tokens: Sequence[int | Piece]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct):
    """The text as vLLM names it and as llama.cpp does."""

    prompt: str
    content: str


class Health(Struct):
    status: str


class Readiness(Struct):
    """How far loading is, in bytes of weights."""

    status: str
    loaded_bytes: int
    total_bytes: int


class ErrorFacts(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    error: ErrorFacts
