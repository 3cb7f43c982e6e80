"""Kimi Linear: what its config.json means, and what its tensors are called in GGUF.

Settings are spelt as the published folders have them; of which layers are which, also as transformers writes it.
"""

from typing import Any

import numpy as np

from phaseline.errors import FileFormatError
from phaseline.files.hf.config import MOST, Config
from phaseline.files.hf.deepseek import NAMES as LATENT
from phaseline.files.hf.deepseek import SIGMOID
from phaseline.files.hf.layout import Layout, Names, Rule
from phaseline.files.hf.sparse import MIXTRAL

_DELTA, _LATENT = "linear_attention", "full_attention"
_DENSE, _SPARSE = "dense", "sparse"
_PERIOD = 4  # every fourth layer behind the first is latent, where the config does not list them
_MOE = "model.layers.*.block_sparse_moe."
_NAMES: Names = {
    **{name: target for name, target in LATENT.items() if ".experts." not in name and ".mlp.gate." not in name},
    **MIXTRAL,
    **{f"{_MOE}{part}_proj": f"blk.*.ffn_{part}" for part in ("gate", "up", "down")},  # of dense layers, as resaved
    **{f"{_MOE}shared_experts.{part}_proj": f"blk.*.ffn_{part}_shexp" for part in ("gate", "up", "down")},
    f"{_MOE}gate.e_score_correction_bias": "blk.*.exp_probs_b.bias",
    "model.layers.*.self_attn.k_proj": "blk.*.attn_k",
    "model.layers.*.self_attn.v_proj": "blk.*.attn_v",
    **{f"model.layers.*.self_attn.{part}_conv1d": f"blk.*.ssm_conv1d_{part}" for part in "qkv"},
    **{f"model.layers.*.self_attn.{part}_proj": f"blk.*.ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")},
    "model.layers.*.self_attn.b_proj": "blk.*.ssm_beta",
    "model.layers.*.self_attn.o_norm": "blk.*.ssm_norm",
    "model.layers.*.self_attn.dt_bias": "blk.*.ssm_dt.bias",
    "model.layers.*.self_attn.A_log": Rule("blk.*.ssm_a", change=lambda values: -np.exp(values)),
}


def kimi_linear(config: Config) -> Layout:
    """Delta attention and latent attention without rotation, then experts chosen as DeepSeek-V3 does."""
    config.only("hidden_act", "silu")
    config.only("attention_bias", False)
    config.only("mla_use_nope", True)
    config.only("moe_router_activation_func", "sigmoid")
    config.only("topk_method", "noaux_tc")
    config.only("use_grouped_topk", True)
    config.only("moe_layer_freq", 1)
    config.only("tie_word_embeddings", False)
    config.ignore("head_dim", "rope_theta", "rope_scaling", "rope_parameters")  # of nothing here
    nope, pe, rank = (config.integer(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"))
    config.only("qk_head_dim", nope + pe)
    heads = config.integer("num_attention_heads", high=MOST)
    config.integer("num_key_value_heads", heads, high=heads)  # the heads share what is stored, whatever it says
    layers, experts = config.integer("num_hidden_layers", high=MOST), config.integer("num_experts", high=1 << 16)
    groups = config.integer("num_expert_group", 1)
    keys = {
        "block_count": layers,
        "context_length": config.integer("model_max_length"),
        "embedding_length": config.integer("hidden_size"),
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.key_length": rank + pe,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + pe,
        "attention.value_length_mla": config.integer("v_head_dim"),
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config.integer("q_lora_rank", 0, low=0),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        "rope.dimension_count": pe,
        "leading_dense_block_count": _dense_layers(config, layers),
        "expert_count": experts,
        "expert_used_count": config.integer("num_experts_per_token", high=experts),
        "expert_feed_forward_length": config.integer("moe_intermediate_size"),
        "expert_shared_count": config.integer("num_shared_experts", 0, low=0),
        "expert_weights_scale": config.number("routed_scaling_factor"),
        "expert_weights_norm": config.flag("moe_renormalize"),
        "expert_gating_func": SIGMOID,
        "expert_group_count": groups,
        "expert_group_used_count": config.integer("topk_group", groups, high=groups),
    }
    return Layout(
        "kimi-linear",
        keys | _delta(config, layers, heads),
        _NAMES,
        config.integer("vocab_size"),
        tied=False,
        experts=experts,
        spare_layers=config.integer("num_nextn_predict_layers", 0, low=0),  # predict further tokens; not built here
    )


def _delta(config: Config, layers: int, heads: int) -> dict[str, Any]:
    """Its sizes, and which layers are latent: those that have a key head."""
    own = config.inner("linear_attn_config")
    if own:
        own.only("num_heads", heads)
        dim, taps = own.integer("head_dim"), own.integer("short_conv_kernel_size")
        latent, delta = (own.integers(key, high=layers) for key in ("full_attn_layers", "kda_layers"))
        own.refuse_unread()
        if sorted(latent + delta) != [*range(1, layers + 1)]:
            raise FileFormatError(
                f"{own.where}: full_attn_layers and kda_layers must name each of {layers} layers once"
            )
        kinds = [_LATENT if n + 1 in latent else _DELTA for n in range(layers)]
    else:
        config.only("linear_num_heads", heads)
        dim, taps = config.integer("linear_head_dim"), config.integer("linear_conv_kernel_dim")
        kinds = [_LATENT if n and n % _PERIOD == 0 else _DELTA for n in range(layers)]
    kinds = _kinds(config, "layer_types", kinds, (_DELTA, _LATENT))
    counts = [int(kind == _LATENT) for kind in kinds]
    return {"attention.head_count_kv": counts, "kda.head_dim": dim, "ssm.conv_kernel": taps}


def _dense_layers(config: Config, layers: int) -> int:
    """How many come before those with experts."""
    count = config.integer("first_k_dense_replace", 1, low=0, high=layers)
    first = [_DENSE] * count + [_SPARSE] * (layers - count)
    kinds = _kinds(config, "mlp_layer_types", first, (_DENSE, _SPARSE))
    count = kinds.count(_DENSE)
    if _DENSE in kinds[count:]:
        raise FileFormatError(f"{config.where}: mlp_layer_types has a dense layer behind one with experts")
    return count


def _kinds(config: Config, key: str, otherwise: list[str], known: tuple[str, str]) -> list[str]:
    """The kind of each layer, `otherwise` where the config does not list them."""
    kinds = config.texts(key)
    if kinds and (len(kinds) != len(otherwise) or not set(known).issuperset(kinds)):
        raise FileFormatError(
            f"{config.where}: {key} must name {' or '.join(known)} for each of {len(otherwise)} layers"
        )
    return kinds or otherwise
