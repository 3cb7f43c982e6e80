"""Tiny random DeepSeek models: on disk, and the same weights in the `transformers` library, in float32."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.models import Model
from support.tiny import TinyWriter
from support.tiny_latent import transformers_sizes, transformers_state, write_experts, write_gated, write_latent

YARN: Mapping[str, Any] = {
    "deepseek2.rope.scaling.type": "yarn",
    "deepseek2.rope.scaling.factor": 8.0,
    "deepseek2.rope.scaling.original_context_length": 64,
    "deepseek2.rope.scaling.yarn_log_multiplier": 0.0707,
}


def write_deepseek(
    path: Path,
    *,
    version: int = 2,
    format: str = "F32",
    fused: bool = False,
    layers: int = 3,
    width: int = 64,
    heads: int = 4,
    nope: int = 32,
    pe: int = 16,
    value: int = 32,
    rank: int = 64,
    q_rank: int = 0,
    ff: int = 96,
    dense: int = 1,
    experts: int = 8,
    active: int = 3,
    expert_ff: int = 32,
    groups: int = 1,
    kept_groups: int = 1,
    shared: int = 2,
    vocab: int = 320,
    context: int = 512,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random model with `dense` layers before those with experts; norms and routers are F32.

    fused: keys and values of the latents in one tensor and sizes of heads alone, as older files have them.
    """
    rng, w = np.random.default_rng(seed), TinyWriter(path, "deepseek2", vocab=vocab, format=format, seed=seed)
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=layers,
        feed_forward_length=ff,
        attention__head_count=heads,
        attention__head_count_kv=heads if fused else 1,
        attention__key_length=nope + pe if fused else rank + pe,
        attention__value_length=value if fused else rank,
        attention__kv_lora_rank=rank,
        attention__layer_norm_rms_epsilon=1e-6,
        rope__dimension_count=pe,
        rope__freq_base=10000.0,
        vocab_size=vocab,
        leading_dense_block_count=dense,
        expert_count=experts,
        expert_used_count=active,
        expert_feed_forward_length=expert_ff,
        expert_shared_count=shared,
        expert_weights_scale=1.5,
        expert_weights_norm=version == 3,
    )
    if not fused:
        w.keys(attention__key_length_mla=nope + pe, attention__value_length_mla=value)
    if q_rank:
        w.keys(attention__q_lora_rank=q_rank)
    if version == 3:
        w.keys(expert_gating_func=2)
    if groups > 1:
        w.keys(expert_group_count=groups, expert_group_used_count=kept_groups)
    w.metadata(extra or {})
    w.matrix("token_embd", vocab, width, 1.0)
    for n in range(layers):
        p = f"blk.{n}."
        w.vector(p + "attn_norm.weight", width, 1.0)
        write_latent(w, p, width, heads, (nope, pe, value, rank, q_rank), fused)
        w.vector(p + "ffn_norm.weight", width, 1.0)
        if n < dense:
            write_gated(w, p, "", width, ff)
        else:
            write_experts(w, rng, p, width, experts, expert_ff, shared=shared, biased=version == 3)
    w.vector("output_norm.weight", width, 1.0)
    w.matrix("output", vocab, width, 2 * width**-0.5)
    return w.close()


def transformers_deepseek(model: Model, *, mistake: str = "") -> Any:
    """The model's settings and weights in the library's class of its version: V3 scores by sigmoid, V2 by softmax.

    `mistake`: "halves" turns the halves of a head's end, "no mscale" leaves the scores as they were without yarn,
    "no bias" forgets what selects, "no latent norm" takes the weights of the latents' norm away.
    """
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM

    spec, latent, moe, rope = model.spec, model.spec.latent, model.spec.moe, model.spec.rope
    assert latent is not None and moe is not None and rope is not None
    third = moe.router.scores == "sigmoid"
    rotation: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.base}
    if rope.yarn:
        # What the scores grow by is stated twice, for queries and keys and for the scores; the first cancels out.
        grown = (math.sqrt(latent.scale * math.sqrt(spec.head_dim)) - 1) / (0.1 * math.log(rope.yarn.factor))
        rotation |= {
            "rope_type": "yarn",
            "factor": rope.yarn.factor,
            "original_max_position_embeddings": rope.yarn.context,
            "mscale": grown,
            "mscale_all_dim": grown,
        }
    own: dict[str, Any] = {"n_group": moe.router.groups}
    if third:
        own |= {"rope_interleave": mistake != "halves"}
    else:
        own |= {"topk_method": "group_limited_greedy" if moe.router.groups > 1 else "greedy"}
    config = (DeepseekV3Config if third else DeepseekV2Config)(
        **transformers_sizes(model),
        n_routed_experts=moe.router.experts,
        topk_group=moe.router.kept_groups,
        first_k_dense_replace=moe.dense_layers,
        rope_parameters=rotation,
        tie_word_embeddings=False,
        **own,
    )
    net = (DeepseekV3ForCausalLM if third else DeepseekV2ForCausalLM)(config)
    state = {name: torch.tensor(values) for name, values in transformers_state(model).items()}
    touched = {"no bias": ("correction_bias", 0.0), "no latent norm": ("kv_a_layernorm", 1.0)}.get(mistake)
    for name, values in state.items():
        if touched and touched[0] in name:
            values.fill_(touched[1])
    net.load_state_dict(state, strict=True)
    if mistake == "no mscale":
        for layer in net.model.layers:
            layer.self_attn.scaling = spec.head_dim**-0.5
    return net.train(False)
