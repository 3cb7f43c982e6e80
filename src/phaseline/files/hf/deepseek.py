"""DeepSeek V2 and V3: what their config.json means, and what their tensors are called in GGUF, whose name for both is
deepseek2. Rotated parts are stored as neighbours in either place.
"""

from typing import Any

from phaseline.files.hf.config import MOST, Config
from phaseline.files.hf.dense import NAMES as DENSE
from phaseline.files.hf.layout import Layout
from phaseline.files.hf.rope import read_rope
from phaseline.files.hf.sparse import EXPERTS

SOFTMAX, SIGMOID = 1, 2  # GGUF's numbers of gating functions
NAMES = {
    **{name: target for name, target in DENSE.items() if ".self_attn." not in name},
    **EXPERTS,
    "model.layers.*.mlp.gate.e_score_correction_bias": "blk.*.exp_probs_b.bias",
    "model.layers.*.mlp.shared_experts.gate_proj": "blk.*.ffn_gate_shexp",
    "model.layers.*.mlp.shared_experts.up_proj": "blk.*.ffn_up_shexp",
    "model.layers.*.mlp.shared_experts.down_proj": "blk.*.ffn_down_shexp",
    "model.layers.*.self_attn.q_proj": "blk.*.attn_q",
    "model.layers.*.self_attn.q_a_proj": "blk.*.attn_q_a",
    "model.layers.*.self_attn.q_a_layernorm": "blk.*.attn_q_a_norm",
    "model.layers.*.self_attn.q_b_proj": "blk.*.attn_q_b",
    "model.layers.*.self_attn.kv_a_proj_with_mqa": "blk.*.attn_kv_a_mqa",
    "model.layers.*.self_attn.kv_a_layernorm": "blk.*.attn_kv_a_norm",
    "model.layers.*.self_attn.kv_b_proj": "blk.*.attn_kv_b",
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
}


def deepseek_v2(config: Config) -> Layout:
    """Softmax over the experts, of which groups may be chosen first."""
    grouped = config.choice("topk_method", ("greedy", "group_limited_greedy"), "greedy") == "group_limited_greedy"
    config.only("scoring_func", "softmax")
    config.only("norm_topk_prob", False)  # transformers does not look at it
    if not grouped:
        config.ignore("n_group", "topk_group")
    keys = _groups(config) if grouped else {}
    return _layout(config, keys | {"expert_gating_func": SOFTMAX, "expert_weights_norm": False})


def deepseek_v3(config: Config) -> Layout:
    """Sigmoid of each expert, a bias that selects, and groups."""
    config.only("topk_method", "noaux_tc")
    config.only("scoring_func", "sigmoid")
    config.only("rope_interleave", True)
    norm = config.flag("norm_topk_prob", True)
    return _layout(config, _groups(config) | {"expert_gating_func": SIGMOID, "expert_weights_norm": norm})


def _groups(config: Config) -> dict[str, Any]:
    groups = config.integer("n_group")
    return {"expert_group_count": groups, "expert_group_used_count": config.integer("topk_group", high=groups)}


def _layout(config: Config, router: dict[str, Any]) -> Layout:
    config.only("hidden_act", "silu")
    for key in ("attention_bias", "mlp_bias"):
        config.only(key, False)
    config.only("moe_layer_freq", 1)
    nope, pe = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    config.only("qk_head_dim", nope + pe)
    config.only("head_dim", pe)
    heads, context = config.integer("num_attention_heads", high=MOST), config.integer("max_position_embeddings")
    config.integer("num_key_value_heads", heads, high=heads)  # the heads share what is stored, whatever it says
    layers, experts = config.integer("num_hidden_layers", high=MOST), config.integer("n_routed_experts", high=1 << 16)
    rope, _ = read_rope(config, pe, context, scores_grow=True)
    keys = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": config.integer("hidden_size"),
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.key_length": nope + pe,
        "attention.value_length": config.integer("v_head_dim"),
        "attention.kv_lora_rank": config.integer("kv_lora_rank"),
        "attention.q_lora_rank": config.integer("q_lora_rank", 0, low=0),
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        "leading_dense_block_count": config.integer("first_k_dense_replace", 0, low=0, high=layers),
        "expert_count": experts,
        "expert_used_count": config.integer("num_experts_per_tok", high=experts),
        "expert_feed_forward_length": config.integer("moe_intermediate_size"),
        "expert_shared_count": config.integer("n_shared_experts", 0, low=0),
        "expert_weights_scale": config.number("routed_scaling_factor", 1.0),
    }
    return Layout(
        "deepseek2",
        keys | router | {f"rope.{key}": value for key, value in rope.items()},
        NAMES,
        config.integer("vocab_size"),
        config.flag("tie_word_embeddings", False),
        experts=experts,
        spare_layers=config.integer("num_nextn_predict_layers", 0, low=0),  # predict further tokens; not built here
    )
