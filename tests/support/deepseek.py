"""Tiny random DeepSeek models: on disk, and the same weights in the `transformers` library, in float32."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.models import Model
from support.tiny import TinyWriter

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
        if q_rank:
            w.matrix(p + "attn_q_a", q_rank, width)
            w.vector(p + "attn_q_a_norm.weight", q_rank, 1.0)
        inputs = q_rank or width
        w.matrix(p + ("attn_q_b" if q_rank else "attn_q"), heads * (nope + pe), inputs, 2 * inputs**-0.5)
        w.matrix(p + "attn_kv_a_mqa", rank + pe, width)
        w.vector(p + "attn_kv_a_norm.weight", rank, 1.0, 0.3)
        if fused:
            w.matrix(p + "attn_kv_b", heads * (nope + value), rank)
        else:
            w.stack(p + "attn_k_b", heads, rank, nope)
            w.stack(p + "attn_v_b", heads, value, rank)
        w.matrix(p + "attn_output", width, heads * value, 3 * (heads * value) ** -0.5)
        w.vector(p + "ffn_norm.weight", width, 1.0)
        if n < dense:
            _gated(w, p, "", width, ff)
            continue
        w.values(p + "ffn_gate_inp.weight", rng.normal(0, 2 * width**-0.5, (experts, width)))
        if version == 3:
            w.vector(p + "exp_probs_b.bias", experts, std=0.2)
        w.stack(p + "ffn_gate_exps", experts, expert_ff, width)
        w.stack(p + "ffn_up_exps", experts, expert_ff, width)
        w.stack(p + "ffn_down_exps", experts, width, expert_ff, 2 * expert_ff**-0.5)
        _gated(w, p, "_shexp", width, expert_ff * shared)
    w.vector("output_norm.weight", width, 1.0)
    w.matrix("output", vocab, width, 2 * width**-0.5)
    return w.close()


def _gated(w: TinyWriter, layer: str, end: str, width: int, ff: int) -> None:
    w.matrix(f"{layer}ffn_gate{end}", ff, width)
    w.matrix(f"{layer}ffn_up{end}", ff, width)
    w.matrix(f"{layer}ffn_down{end}", width, ff, 2 * ff**-0.5)


_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


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
    own: dict[str, Any] = {"norm_topk_prob": moe.router.renormalise, "n_group": moe.router.groups}
    if third:
        own |= {"rope_interleave": mistake != "halves"}
    else:
        own |= {"topk_method": "group_limited_greedy" if moe.router.groups > 1 else "greedy"}
    config = (DeepseekV3Config if third else DeepseekV2Config)(
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        intermediate_size=spec.ff,
        moe_intermediate_size=moe.ff,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        n_shared_experts=moe.shared_ff // moe.ff,
        n_routed_experts=moe.router.experts,
        routed_scaling_factor=moe.router.scale,
        kv_lora_rank=latent.rank,
        q_lora_rank=latent.q_rank or None,
        qk_rope_head_dim=latent.pe,
        v_head_dim=latent.value,
        qk_nope_head_dim=latent.nope,
        topk_group=moe.router.kept_groups,
        num_experts_per_tok=moe.router.active,
        first_k_dense_replace=moe.dense_layers,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.norm_eps,
        rope_parameters=rotation,
        tie_word_embeddings=False,
        **own,
    )
    net = (DeepseekV3ForCausalLM if third else DeepseekV2ForCausalLM)(config)
    state = {name: torch.tensor(values) for name, values in _state(model).items()}
    touched = {"no bias": ("correction_bias", 0.0), "no latent norm": ("kv_a_layernorm", 1.0)}.get(mistake)
    for name, values in state.items():
        if touched and touched[0] in name:
            values.fill_(touched[1])
    net.load_state_dict(state, strict=True)
    if mistake == "no mscale":
        for layer in net.model.layers:
            layer.self_attn.scaling = spec.head_dim**-0.5
    return net.train(False)


def _state(model: Model) -> dict[str, NDArray[np.float32]]:
    file, spec = model.file, model.spec
    state = {}
    for name in file.tensors:
        stem, _, end = name.rpartition(".")
        part = stem.split(".")[-1]
        if stem in _ENDS:
            state[f"{_ENDS[stem]}.weight"] = file.float32(name)
        elif part == "exp_probs_b":
            state[f"model.layers.{stem.split('.')[1]}.mlp.gate.e_score_correction_bias"] = file.float32(name)
        elif part in _LAYER:
            state[f"model.layers.{stem.split('.')[1]}.{_LAYER[part]}.{end}"] = file.float32(name)
    for n in range(spec.layers):
        at, to = f"blk.{n}.", f"model.layers.{n}."
        if at + "attn_k_b.weight" in file.tensors:
            keys, values = file.float32(at + "attn_k_b.weight"), file.float32(at + "attn_v_b.weight")
            both = np.concatenate([keys.swapaxes(1, 2), values], axis=1)  # (heads, nope + value, rank)
            state[to + "self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
        if at + "ffn_gate_exps.weight" in file.tensors:
            gate, up, down = (file.float32(f"{at}ffn_{part}_exps.weight") for part in ("gate", "up", "down"))
            state[to + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            state[to + "mlp.experts.down_proj"] = down
    return state
