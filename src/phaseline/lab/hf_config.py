"""Shapes for the paper calculator from the config.json that a Hugging Face model carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.lab.calculator import check_positive
from phaseline.lab.shapes import DELTA_NOTE, LATENT_NOTE, Shape, Weights

_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_GROUPED_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
_LATENT = ("deepseek_v2", "deepseek_v3", "kimi_linear")
KINDS = (*_DENSE, *_GROUPED_EXPERTS, *_LATENT)
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
_HIGH = 1 << 24  # of any whole number


@dataclass(frozen=True)
class _Attention:
    """One layer: parameters, elements stored per position, FLOP per query-key pair and group in either phase."""

    params: int
    stored: int
    pair_flops: int
    prefill_pair_flops: int
    group: float
    prefill_group: float
    note: str


@dataclass(frozen=True)
class _Delta:
    """Layers of delta attention: how many, and in each parameters and elements carried on."""

    layers: int = 0
    params: int = 0
    carried: int = 0


@dataclass(frozen=True)
class _Mixture:
    """The expert layers: how many, and in each the experts, how many a row takes, and what every row multiplies."""

    layers: int
    experts: int
    active: int
    expert_params: int
    every_row: int


def shape_from_config(
    config: Mapping[str, Any], name: str, *, kv_element_bytes: float = 2, weight_bits: float | None = None
) -> Shape:
    """The shape of a model of one of KINDS, norms and biases left out.

    weight_bits: as the config's own type has it where not stated. UnsupportedError and FileFormatError name the key
    that is refused or missing.
    """
    keys = _Keys(config)
    kind = keys.choice("model_type", KINDS)
    width, vocab, layers = (keys.integer(k) for k in ("hidden_size", "vocab_size", "num_hidden_layers"))
    attention = _latent(keys, width) if kind in _LATENT else _grouped(keys, kind, width)
    delta = _delta(keys, width, layers) if kind == "kimi_linear" else _Delta()
    attending = layers - delta.layers
    mixture = None if kind in _DENSE else _mixture(keys, kind, width, layers)
    dense = layers - mixture.layers if mixture else layers
    every = attending * attention.params + delta.layers * delta.params
    if dense:
        every += dense * 3 * width * keys.integer("intermediate_size")
    if mixture:
        every += mixture.layers * mixture.every_row
    bits, stored = _bits(keys, weight_bits)
    tied = keys.flag("tie_word_embeddings", False)

    def weights(params: int) -> Weights:
        return Weights(params, params * bits / 8)

    return Shape(
        name=name,
        every_row=weights(every),
        wanted=weights(vocab * width),
        held=weights(0 if tied else vocab * width),
        kv_bytes=attending * attention.stored * kv_element_bytes,
        pair_flops=attending * attention.pair_flops,
        prefill_pair_flops=attending * attention.prefill_pair_flops,
        group=attention.group,
        prefill_group=attention.prefill_group,
        expert=weights(mixture.layers * mixture.expert_params) if mixture else Weights(),
        experts=mixture.experts if mixture else 0,
        active=mixture.active if mixture else 0,
        context=keys.integer("model_max_length" if kind == "kimi_linear" else "max_position_embeddings"),
        window=None if kind == "kimi_linear" else _window(keys, kind, layers),
        stream_bytes=4 * delta.layers * delta.carried,
        assumptions=(
            stored,
            "norms, biases and convolutions are left out" if delta.layers else "norms and biases are left out",
            f"{attention.note} take {kv_element_bytes:g} bytes an element, unpadded",
            *([DELTA_NOTE] if delta.layers else []),
        ),
    )


def _grouped(keys: "_Keys", kind: str, width: int) -> _Attention:
    heads = keys.integer("num_attention_heads")
    # What transformers assumes where a key is absent differs by kind; only its oldest files leave these out.
    kv_heads = keys.integer("num_key_value_heads", heads if kind == "llama" else None)
    head_dim = keys.integer("head_dim", None if kind.startswith("qwen3") else _whole(width, heads, "hidden_size"))
    group = _whole(heads, kv_heads, "num_attention_heads")
    flops = 4 * heads * head_dim
    params = 2 * width * head_dim * (heads + kv_heads)  # q and output, k and v
    return _Attention(params, 2 * kv_heads * head_dim, flops, flops, group, group, "keys and values")


def _latent(keys: "_Keys", width: int) -> _Attention:
    """Multi-head latent attention (DeepSeek-V2, 2024): one row of cache per position, shared by all heads."""
    heads, rank = keys.integer("num_attention_heads"), keys.integer("kv_lora_rank")
    nope, rope, value = (keys.integer(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q_rank, q_width = keys.integer_or_null("q_lora_rank"), heads * (nope + rope)
    params = width * q_width if q_rank is None else q_rank * (width + q_width)
    params += width * (rank + rope) + rank * heads * (nope + value) + heads * value * width
    absorbed, plain = 2 * heads * (2 * rank + rope), 2 * heads * (nope + rope + value)
    return _Attention(params, rank + rope, absorbed, plain, heads, 1, LATENT_NOTE)


def _delta(keys: "_Keys", width: int, layers: int) -> _Delta:
    """Kimi delta attention (Kimi Team 2025): q, k, v and output; decay and gate by way of a head's size; beta."""
    own = keys.inner("linear_attn_config")
    keys.only("tie_word_embeddings", None, False)
    keys.only("routed_expert_hidden_size", None)  # of Kimi K3
    own.only("use_full_rank_gate", None, False)
    heads, dim, taps = (own.integer(k) for k in ("num_heads", "head_dim", "short_conv_kernel_size"))
    count, inner = own.count("kda_layers", layers), heads * dim
    params = 4 * width * inner + 2 * dim * (width + inner) + width * heads
    return _Delta(count, params, heads * dim**2 + (taps - 1) * 3 * inner)


def _mixture(keys: "_Keys", kind: str, width: int, layers: int) -> _Mixture:
    active = keys.integer("num_experts_per_token" if kind == "kimi_linear" else "num_experts_per_tok")
    shared = 0
    if kind == "mixtral":
        experts, size, sparse = keys.integer("num_local_experts"), keys.integer("intermediate_size"), layers
    elif kind in _LATENT:
        number, beside = ("n_routed_experts", "n_shared_experts")
        if kind == "kimi_linear":
            number, beside = ("num_experts", "num_shared_experts")
        experts, size = keys.integer(number), keys.integer("moe_intermediate_size")
        sparse = layers - keys.integer("first_k_dense_replace", low=0, high=layers)
        keys.only("moe_layer_freq", None, 1)
        shared = 3 * width * size * (keys.integer_or_null(beside) or 0)
    else:
        number = "num_experts" if keys.get("num_experts") is not None else "num_local_experts"  # old and new spelling
        experts, size, sparse = keys.integer(number), keys.integer("moe_intermediate_size"), layers
        keys.only("decoder_sparse_step", None, 1)
        keys.only("mlp_only_layers", None, [])
        if kind == "qwen2_moe":  # and a gate for the shared expert
            shared = 3 * width * keys.integer("shared_expert_intermediate_size") + width
    if active > experts:
        raise FileFormatError(f"config.json: num_experts_per_tok is {active}, of {experts} experts")
    return _Mixture(sparse, experts, active, 3 * width * size, width * experts + shared)


def _window(keys: "_Keys", kind: str, layers: int) -> int | None:
    """Positions that every layer's attention is limited to."""
    keys.only("layer_types", None, ["full_attention"] * layers)
    if kind.startswith("qwen"):
        keys.only("use_sliding_window", None, False)  # else it applies to some layers
        return None
    return keys.integer_or_null("sliding_window") if kind in ("mistral", "mixtral") else None


def _bits(keys: "_Keys", stated: float | None) -> tuple[float, str]:
    """Bits per weight, and where that is from."""
    if stated is not None:
        check_positive(weight_bits=stated)
        return stated, f"weights are in {stated:g} bits each"
    quantization = keys.get("quantization_config")
    if quantization is not None:
        if not isinstance(quantization, Mapping) or quantization.get("quant_method") != "fp8":
            raise UnsupportedError("config.json: quantization_config is not fp8: state --weight-bits")
        return 8, "weights are in 8 bits each, as quantization_config has most of them"
    dtype = keys.get("torch_dtype") or keys.get("dtype")
    if dtype is None:
        return 16, "weights are in 16 bits each: the config names no type"
    if dtype not in _BITS:
        raise UnsupportedError(f"config.json: torch_dtype {dtype!r:.80} is none of {', '.join(_BITS)}")
    return _BITS[dtype], f"weights are in {_BITS[dtype]} bits each, as the config names {dtype}"


def _whole(number: int, by: int, name: str) -> int:
    if number % by:
        raise FileFormatError(f"config.json: {name} {number} does not divide by {by}")
    return number // by


class _Keys:
    """A config's values, checked as they are read; null counts as absent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def get(self, key: str) -> Any:
        return self._config.get(key)

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int = _HIGH) -> int:
        value = self._config.get(key)
        if value is None:
            if default is None:
                raise FileFormatError(f"config.json: {key} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FileFormatError(f"config.json: {key} is {value!r:.80}; accepted: whole numbers {low} to {high}")
        return value

    def integer_or_null(self, key: str) -> int | None:
        """A whole number, or None where the config says null. The key must be there: its absence means neither."""
        if key not in self._config:
            raise FileFormatError(f"config.json: {key} is missing")
        return None if self._config[key] is None else self.integer(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise FileFormatError(f"config.json: {key} is {value!r:.80}; accepted: true, false")
        return value

    def inner(self, key: str) -> "_Keys":
        """The keys of an object within."""
        value = self._config.get(key)
        if not isinstance(value, Mapping):
            raise FileFormatError(f"config.json: {key} is {value!r:.80}; an object is needed")
        return _Keys(value)

    def count(self, key: str, most: int) -> int:
        """How many a list of layers names."""
        value = self._config.get(key)
        if not isinstance(value, list) or len(set(map(str, value))) != len(value) or len(value) > most:
            raise FileFormatError(f"config.json: {key} is {value!r:.80}; a list of up to {most} layers is needed")
        return len(value)

    def choice(self, key: str, accepted: tuple[str, ...]) -> str:
        value = self._config.get(key)
        if value not in accepted:
            choices = ", ".join(accepted)
            raise UnsupportedError(f"config.json: {key} {value!r:.80} is not supported (supported: {choices})")
        return str(value)

    def only(self, key: str, *accepted: object) -> None:
        """Anything but these values means a model of another shape."""
        if self._config.get(key) not in accepted:
            raise UnsupportedError(f"config.json: {key} = {self._config[key]!r:.80} is not supported")
