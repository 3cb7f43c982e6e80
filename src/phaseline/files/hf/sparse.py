"""Mixtures of experts: what their config.json means, and what their tensors are called in GGUF.

Each expert's matrices are tensors of their own in a folder; GGUF stacks them.
"""

from dataclasses import replace
from typing import Any

from phaseline.files.hf.config import MOST, Config
from phaseline.files.hf.dense import HEAD_NORMS, decoder, refuse_window
from phaseline.files.hf.layout import Layout

EXPERTS = {
    "model.layers.*.mlp.gate": "blk.*.ffn_gate_inp",
    "model.layers.*.mlp.experts.*.gate_proj": "blk.*.ffn_gate_exps",
    "model.layers.*.mlp.experts.*.up_proj": "blk.*.ffn_up_exps",
    "model.layers.*.mlp.experts.*.down_proj": "blk.*.ffn_down_exps",
}
MIXTRAL = {
    "model.layers.*.block_sparse_moe.gate": "blk.*.ffn_gate_inp",
    "model.layers.*.block_sparse_moe.experts.*.w1": "blk.*.ffn_gate_exps",
    "model.layers.*.block_sparse_moe.experts.*.w3": "blk.*.ffn_up_exps",
    "model.layers.*.block_sparse_moe.experts.*.w2": "blk.*.ffn_down_exps",
}


def mixtral(config: Config) -> Layout:
    """Mixtral is Llama with experts; the weights of those chosen always add up to one."""
    layout = decoder(config, "llama", turned=True, more=MIXTRAL, base=1e6)
    refuse_window(config, layout)
    return _with_experts(config, layout, "num_local_experts")


def olmoe(config: Config) -> Layout:
    """OLMoE: queries and keys are normed across heads."""
    config.only("attention_bias", False)
    config.only("clip_qkv")
    layout = decoder(config, "olmoe", more=HEAD_NORMS | EXPERTS, alike=True)
    return _with_experts(config, layout, "num_experts", norm=config.flag("norm_topk_prob", False))


def qwen3_moe(config: Config) -> Layout:
    """Qwen3 with experts in every layer."""
    for key in ("attention_bias", "use_sliding_window"):
        config.only(key, False)
    config.ignore("sliding_window", "max_window_layers")  # of the window that is not used
    config.only("layer_types", ["full_attention"] * config.integer("num_hidden_layers", high=MOST))
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    config.integer("head_dim")  # not what width and heads would make it
    layout = decoder(config, "qwen3moe", more=HEAD_NORMS | EXPERTS)
    width = {"expert_feed_forward_length": config.integer("moe_intermediate_size")}
    number = "num_experts" if config.has("num_experts") else "num_local_experts"  # old and new spelling
    return _with_experts(config, layout, number, norm=config.flag("norm_topk_prob", False), more=width)


def _with_experts(
    config: Config, layout: Layout, number: str, *, norm: bool | None = None, more: dict[str, Any] | None = None
) -> Layout:
    """The layout with its experts counted; norm: whether the weights of those chosen add up to one."""
    experts = config.integer(number, high=1 << 16)
    keys = {"expert_count": experts, "expert_used_count": config.integer("num_experts_per_tok", high=experts)}
    if norm is not None:
        keys["expert_weights_norm"] = norm
    return replace(layout, keys={**layout.keys, **keys, **(more or {})}, experts=experts)
