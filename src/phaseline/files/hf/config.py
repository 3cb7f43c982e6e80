"""The settings of a Hugging Face model, checked as they are read; every key must be read or declared harmless."""

from collections.abc import Iterable, Mapping
from typing import Any

from phaseline.errors import FileFormatError, UnsupportedError

_HIGH = 1 << 24  # of any whole number
MOST = 4096  # layers, or heads, that any model has

# Keys that do not change what a forward pass computes: how the model was made, stored, sampled or trained.
HARMLESS = frozenset(
    [
        *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
        *("transformers.js_config", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),
        *("initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),
        *("classifier_dropout", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "problem_type", "id2label"),
        *("label2id", "task_specific_params", "torchscript", "use_bfloat16", "chunk_size_feed_forward", "max_length"),
        *("do_sample", "temperature", "top_k", "top_p", "pretraining_tp", "gradient_checkpointing", "ep_size"),
        *("reorder_and_upcast_attn", "model_max_length", "finetuning_task", "prefix", "is_decoder"),
        *("cache_implementation", "_num_labels", "unsloth_fixed", "unsloth_version"),
    ]
)


class Config:
    """Values by key; null counts as absent. `where` begins every message."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._stated = frozenset(values)
        self._values = {key: value for key, value in values.items() if value is not None}
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._values

    def states(self, key: str) -> bool:
        """Whether the key is there at all, if only as null."""
        return key in self._stated

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = _HIGH) -> int:
        """A whole number within [low, high]."""
        value = self._get(key, default)
        if type(value) is not int or not low <= value <= high:
            raise FileFormatError(f"{self.where}: {key} is {value!r:.80}; accepted: whole numbers {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        """A number within (low, high]."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value <= high:
            raise FileFormatError(f"{self.where}: {key} is {value!r:.80}; accepted: numbers over {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise FileFormatError(f"{self.where}: {key} is {value!r:.80}; accepted: true, false")
        return value

    def choice(self, key: str, accepted: Iterable[str], default: str | None = None) -> str:
        """One of the texts that are accepted."""
        value = self._get(key, default)
        if value not in (choices := list(accepted)):
            raise UnsupportedError(
                f"{self.where}: {key} {value!r:.80} is not supported (supported: {', '.join(choices)})"
            )
        return str(value)

    def only(self, key: str, *accepted: object) -> None:
        """A setting that may be absent or one of these; anything else asks for what is not built."""
        self._read.add(key)
        if key in self._values and self._values[key] not in accepted:
            choices = ", ".join(["absent", *map(repr, accepted)])
            raise UnsupportedError(
                f"{self.where}: {key} = {self._values[key]!r:.80} is not supported (supported: {choices})"
            )

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty if absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise FileFormatError(f"{self.where}: {key} is {value!r:.80}; a list of texts is needed")
        return value

    def integers(self, key: str, *, low: int = 1, high: int = _HIGH) -> list[int]:
        """A list of whole numbers within [low, high]."""
        value = self._get(key, None)
        if not isinstance(value, list) or not all(type(n) is int and low <= n <= high for n in value):
            wanted = f"a list of whole numbers from {low} to {high}"
            raise FileFormatError(f"{self.where}: {key} is {value!r:.80}; {wanted} is needed")
        return value

    def inner(self, key: str) -> "Config | None":
        """The settings inside an object; None if it is absent."""
        self._read.add(key)
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise FileFormatError(f"{self.where}: {key} is {value!r:.80}; an object is needed")
        return Config(value, f"{self.where}: {key}")

    def ignore(self, *keys: str) -> None:
        """Keys that do not matter to this architecture."""
        self._read.update(keys)

    def refuse_unread(self, harmless: frozenset[str] = frozenset()) -> None:
        """Raise if a key remains that nothing looked at: it may change the model."""
        unknown = sorted(self._values.keys() - self._read - harmless)
        if unknown:
            known = ", ".join(sorted(self._read))
            raise UnsupportedError(f"{self.where}: unknown setting {unknown[0]!r:.80}; supported: {known}")

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise FileFormatError(f"{self.where}: {key} is missing")
        return value
