"""Gemma 3 (text): what its config.json means, and what its tensors are called in GGUF.

A folder's norms hold w of 1 + w; GGUF has the sum.
"""

from typing import Any

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.hf.config import Config
from phaseline.files.hf.dense import HEAD_NORMS, NAMES, sizes
from phaseline.files.hf.layout import Layout, Rule
from phaseline.files.hf.rope import read_rope, rope_keys

_PERIOD = 6  # every sixth layer is global, where the config does not list them
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_LOCAL_BASE, _GLOBAL_BASE = 1e4, 1e6  # of the rotation, where the config does not say
_NORMS = {
    "model.norm": "output_norm",
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
    "model.layers.*.pre_feedforward_layernorm": "blk.*.ffn_norm",
    "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
    **HEAD_NORMS,
}


def gemma3(config: Config) -> Layout:
    """Local layers attend within a window and turn by a base of their own."""
    config.only("hidden_activation", "gelu_pytorch_tanh")
    for key in ("attention_bias", "use_bidirectional_attention"):
        config.only(key, False)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        config.only(key)
    config.integer("head_dim")  # not what width and heads would make it
    keys = sizes(config)
    local = _local_layers(config, keys["block_count"])
    rope, base = _ropes(config, keys)
    keys |= rope | {
        "attention.sliding_window": config.integer("sliding_window"),
        "attention.sliding_window_pattern": local,
        "attention.scale": config.number("query_pre_attn_scalar") ** -0.5,
        "rope.freq_base_swa": base,
    }
    norms = {name: Rule(target, change=lambda values: values + 1) for name, target in _NORMS.items()}
    vocab, tied = config.integer("vocab_size"), config.flag("tie_word_embeddings", True)
    return Layout("gemma3", keys, {**NAMES, **norms}, vocab, tied)


def _local_layers(config: Config, layers: int) -> list[bool]:
    """Which layers attend within the window."""
    period = config.integer("sliding_window_pattern", _PERIOD)
    config.ignore("_sliding_window_pattern")  # how the list of layers was made
    if not config.has("layer_types"):
        return [(layer + 1) % period > 0 for layer in range(layers)]
    kinds = config.texts("layer_types")
    if len(kinds) != layers or not {_LOCAL, _GLOBAL}.issuperset(kinds):
        raise FileFormatError(
            f"{config.where}: layer_types must name {_LOCAL} or {_GLOBAL} for each of {layers} layers"
        )
    return [kind == _LOCAL for kind in kinds]


def _ropes(config: Config, keys: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """The rotation of global layers, as keys, and the base of local ones, which nothing stretches."""
    dims, context = keys["attention.key_length"], keys["context_length"]
    both = config.inner("rope_parameters")
    if both is None:  # the older spelling
        base = config.number("rope_local_base_freq", _LOCAL_BASE, low=1.0)
        rope, factors = read_rope(config, dims, context, _GLOBAL_BASE)
    else:
        config.ignore("rope_theta", "rope_local_base_freq", "rope_scaling")
        wide, near = both.inner(_GLOBAL), both.inner(_LOCAL)
        both.refuse_unread()
        if wide is None or near is None:
            raise FileFormatError(f"{both.where}: both {_GLOBAL} and {_LOCAL} are needed")
        near.only("rope_type", "default")
        base = near.number("rope_theta", _LOCAL_BASE, low=1.0)
        near.refuse_unread()
        rope, factors = rope_keys(wide, dims, context, _GLOBAL_BASE)
    if factors is not None:
        raise UnsupportedError(f"{config.where}: rope_type 'llama3' is not supported for this model")
    return {f"rope.{key}": value for key, value in rope.items()}, base
