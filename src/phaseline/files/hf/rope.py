"""Rotary positions: from `rope_parameters`, or `rope_theta` and `rope_scaling` of older files, to GGUF's keys."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.errors import FileFormatError
from phaseline.files.hf.config import Config

_TYPES = ("default", "linear", "llama3", "yarn")
Floats = NDArray[np.float32]


def read_rope(
    config: Config, dims: int, context: int, base: float = 10000.0, *, scores_grow: bool = False
) -> tuple[dict[str, Any], Floats | None]:
    """Keys below `{arch}.rope.`, and the factors of Llama 3's scaling, (dims / 2,), if that is asked for.

    `base`: what this architecture takes where the config states none. scores_grow: under yarn, by mscale_all_dim, and
    not queries and keys. UnsupportedError names any other scaling.
    """
    config.only("partial_rotary_factor", 1.0)
    parameters, scaling = config.inner("rope_parameters"), config.inner("rope_scaling")
    theta = config.number("rope_theta", base, low=1.0)
    rope = parameters or scaling  # as transformers has it: where there are parameters, nothing else is read
    if rope is None:
        return {"dimension_count": dims, "freq_base": theta}, None
    return rope_keys(rope, dims, context, theta, scores_grow=scores_grow)


def rope_keys(
    rope: Config, dims: int, context: int, base: float, *, scores_grow: bool = False
) -> tuple[dict[str, Any], Floats | None]:
    """The same, from the object that says how positions are turned and stretched."""
    theta = rope.number("rope_theta", base, low=1.0)
    keys: dict[str, Any] = {"dimension_count": dims, "freq_base": theta}
    kind = rope.choice("rope_type" if rope.has("rope_type") else "type", _TYPES, "default")
    rope.ignore("type")  # the older name of rope_type, beside the newer
    rope.only("partial_rotary_factor", 1.0)
    factors = None
    if kind == "linear":
        keys |= {"scaling.type": "linear", "scaling.factor": rope.number("factor")}
    elif kind == "llama3":
        factors = _llama3(rope, dims, theta)
    elif kind == "yarn":
        keys |= _yarn(rope, context)
        if scores_grow:
            grown = rope.number("mscale_all_dim")
            rope.only("mscale", grown)  # what makes the two cancel
            keys["scaling.yarn_log_multiplier"] = 0.1 * grown
    rope.refuse_unread()
    return keys, factors


def _llama3(rope: Config, dims: int, base: float) -> Floats:
    """What divides each pair's frequency: 1 for short waves, `factor` for long ones, blended between (Llama 3.1)."""
    factor, original = rope.number("factor"), rope.integer("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    waves = 2 * math.pi * base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)  # positions per turn, (dims / 2,)
    if high <= low:
        raise FileFormatError(f"{rope.where}: high_freq_factor {high:g} must be above low_freq_factor {low:g}")
    blend = np.clip((original / waves - low) / (high - low), 0, 1)  # 1: short, 0: long
    return np.asarray(1 / ((1 - blend) / factor + blend), np.float32)


def _yarn(rope: Config, context: int) -> dict[str, Any]:
    """Peng et al. 2023. GGUF's attn_factor multiplies 0.1 ln(factor) + 1; here the whole is stated, or nothing."""
    factor = rope.number("factor")
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    rope.only("truncate", True)
    keys = {
        "scaling.type": "yarn",
        "scaling.factor": factor,
        "scaling.original_context_length": rope.integer("original_max_position_embeddings", context),
    }
    if rope.has("attention_factor"):
        keys["scaling.attn_factor"] = rope.number("attention_factor") / usual
    for theirs, ours, default in (("beta_fast", "yarn_beta_fast", 32.0), ("beta_slow", "yarn_beta_slow", 1.0)):
        if (beta := rope.number(theirs, default)) != default:
            keys[f"scaling.{ours}"] = beta
    return keys
