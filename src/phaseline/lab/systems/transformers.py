"""A model in the `transformers` library as a system under test, on this machine's CPU. Nothing is ever downloaded."""

import asyncio
import importlib
import inspect
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Self

from phaseline.errors import PhaselineError, RequestError, UnsupportedError
from phaseline.lab.systems.base import Ask, Piece, StreamFault
from phaseline.lab.trace import META

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
_GREEDY: Mapping[str, Any] = {"temperature": 0}


class TransformersSystem:
    """A causal language model that is in memory. The likeliest token is always taken.

    Each forward serves one stream and brings one token: a whole prompt the first, one row of the model's own cache each
    later one. Forwards run one after the other in a thread beside the event loop, so that what is due during one is
    sent on time, and its waiting is seen as its own. A token is handed on about 0.1 ms after its forward has ended.
    """

    name = "transformers"

    def __init__(self, model: Any, tokenizer: Any = None, *, facts: Mapping[str, Any] | None = None) -> None:
        self._model, self._tokenizer, self._facts = model.train(False), tokenizer, facts or {}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="transformers")

    @classmethod
    def load(
        cls, path: str | Path, *, dtype: Literal["bfloat16", "float32"] = "bfloat16", threads: int | None = None
    ) -> Self:
        """A local folder as `save_pretrained` leaves it, or a GGUF file, whose weights are dequantised to `dtype`.

        `threads` counts for all of torch in this process (None: as many as it likes).
        Raises UnsupportedError without the packages, or for what the library can't load completely.
        """
        path, torch, library = Path(path), _package("torch"), _package("transformers")
        library.utils.logging.disable_progress_bar()
        packed = path.suffix == ".gguf"
        if not (path.is_file() if packed else (path / "config.json").is_file()):
            raise UnsupportedError(
                f"{path} is neither a folder with a config.json nor a .gguf file: models are not downloaded here"
            )
        if threads is not None:
            torch.set_num_threads(threads)
        try:
            model = (_from_gguf if packed else _from_folder)(library, path, getattr(torch, dtype))
            tokenizer = _tokenizer(library, path)
        except PhaselineError:
            raise
        except Exception as error:  # of many kinds, where a file is damaged
            raise UnsupportedError(f"transformers cannot load {path}: {error}") from error
        weights = f"dequantised from {path.name}" if packed else f"as in the folder, in {dtype}"
        return cls(model, tokenizer, facts={"model": path.stem, "weights": weights})

    async def generate(self, ask: Ask) -> AsyncGenerator[Sequence[Piece], None]:
        """See StreamSystem. Raises RequestError for options of sampling: all it can do is temperature 0."""
        sampled = {name: value for name, value in ask.options.items() if name != "seed" and _GREEDY.get(name) != value}
        if sampled:
            raise RequestError(f"{sampled}: this system always takes the likeliest token, ask with temperature 0")
        prompt = self._ids(ask)
        answer = _Answer(self._model, self._tokenizer, ask, self._ends())
        loop, reason = asyncio.get_running_loop(), None
        rows = prompt
        while reason is None:
            try:
                token, text, reason = await loop.run_in_executor(self._worker, answer.forward, rows)
            except RuntimeError as error:  # as torch says that there is no memory
                raise StreamFault(f"transformers failed: {error}") from error
            rows = [token]
            facts = {"prompt_tokens": len(prompt), "cached_tokens": 0, "finish_reason": reason}
            yield [Piece("text", 1, text), *([Piece(META, facts=facts)] if reason else [])]

    async def describe(self) -> Mapping[str, Any]:
        torch, library, model = _package("torch"), _package("transformers"), self._model
        return {
            "kind": "transformers",
            **self._facts,
            "architecture": type(model).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": model.config._attn_implementation,
            "context": self._context(),
            "threads": torch.get_num_threads(),
            "version": f"transformers {library.__version__}, torch {torch.__version__}",
        }

    async def close(self) -> None:
        self._worker.shutdown()

    def _ids(self, ask: Ask) -> list[int]:
        """The prompt's ids. Raises StreamFault if the model can't serve it."""
        if isinstance(ask.prompt, str):
            if self._tokenizer is None:
                raise StreamFault("this model has no tokenizer: ask with token ids")
            ids = [int(token) for token in self._tokenizer(ask.prompt)["input_ids"]]
        else:
            ids = list(ask.prompt)
        vocab, context = self._model.get_input_embeddings().num_embeddings, self._context()
        if not ids or not all(0 <= token < vocab for token in ids):
            raise StreamFault(f"a prompt needs at least one token, and token ids from 0 to {vocab - 1}")
        if context is not None and len(ids) + ask.max_tokens > context:
            raise StreamFault(f"{len(ids)} prompt tokens and {ask.max_tokens} more exceed the context of {context}")
        return ids

    def _context(self) -> int | None:
        return getattr(self._model.config, "max_position_embeddings", None)

    def _ends(self) -> frozenset[int]:
        told = self._model.generation_config.eos_token_id
        return frozenset([] if told is None else [told] if isinstance(told, int) else told)


class _Answer:
    """One stream's way through the model. Its state is the library's own cache."""

    def __init__(self, model: Any, tokenizer: Any, ask: Ask, ends: frozenset[int]) -> None:
        self._torch = _package("torch")
        self._model, self._ask, self._ends = model, ask, ends
        self._text = _Text(tokenizer)
        self._made = 0
        takes = inspect.signature(model.forward).parameters
        cache = _package("transformers").DynamicCache(config=model.config)
        self._options: dict[str, Any] = {"cache" if "cache" in takes else "past_key_values": cache, "use_cache": True}
        if "logits_to_keep" in takes:
            self._options["logits_to_keep"] = 1

    def forward(self, rows: Sequence[int]) -> tuple[int, str, str | None]:
        """Read `rows`, the prompt or the last token. Gives the next token, its text, and why it is the last (None)."""
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([list(rows)]), **self._options).logits[0, -1]  # (vocab,)
            if self._made < (self._ask.min_tokens or 0):
                logits[list(self._ends)] = -self._torch.inf
            token = int(logits.argmax())
        self._made += 1
        reason = "length" if self._made >= self._ask.max_tokens else None
        if token in self._ends and not self._ask.ignore_eos:
            reason = "stop"
        return token, self._text.push(token, last=reason is not None), reason


class _Text:
    """Ids to text, as they come; an unfinished character waits for its rest. Without a tokenizer there is none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the last that were told, since what follows may depend on them, and those after
        self._told = 0

    def push(self, token: int, *, last: bool) -> str:
        if self._tokenizer is None:
            return ""
        self._ids.append(token)
        before, now = self._decode(self._ids[: self._told]), self._decode(self._ids)
        if now.endswith("\ufffd") and not last:
            return ""
        self._ids = self._ids[self._told :]
        self._told = len(self._ids)
        return now[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""


def _from_folder(library: Any, path: Path, dtype: Any) -> Any:
    model, info = library.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    return _complete(model, info["missing_keys"])


def _from_gguf(library: Any, path: Path, dtype: Any) -> Any:
    _package("gguf")
    reader = _package("transformers.modeling_gguf_pytorch_utils")
    config = library.AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    model = library.AutoModelForCausalLM.from_config(config, dtype=dtype)
    tensors = reader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, _ = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    state = model.state_dict()
    loaded = {state[name].data_ptr() for name in tensors if name in state}
    return _complete(model, [name for name in missing if state[name].data_ptr() not in loaded])


def _complete(model: Any, missing: Sequence[str]) -> Any:
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing)[:5])}, whose values would be random")
    return model


def _tokenizer(library: Any, path: Path) -> Any:
    if path.suffix == ".gguf":
        return library.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    if any((path / name).is_file() for name in _TOKENIZERS):
        return library.AutoTokenizer.from_pretrained(path, local_files_only=True)
    return None


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnsupportedError(
            f"transformers in this process needs the package {name.split('.')[0]}: pip install 'phaseline[reference]'"
        ) from None
