"""Tiny random models with experts: on disk, and the same weights in the `transformers` library, in float32."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.models import Model
from support.tiny import TinyWriter

ARCHS = ("llama", "olmoe", "qwen3moe")  # the first is Mixtral's


def write_sparse(
    path: Path,
    arch: str,
    *,
    format: str = "F32",
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ff: int = 32,
    experts: int = 8,
    active: int = 3,
    vocab: int = 320,
    context: int = 512,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random model of that architecture and return its path; routers and norms are F32."""
    rng = np.random.default_rng(seed)
    w, q, kv = TinyWriter(path, arch, vocab=vocab, format=format, seed=seed), heads * head_dim, kv_heads * head_dim
    w.keys(
        context_length=context,
        embedding_length=width,
        block_count=layers,
        feed_forward_length=ff,
        attention__head_count=heads,
        attention__head_count_kv=kv_heads,
        attention__key_length=head_dim,
        attention__value_length=head_dim,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=head_dim,
        rope__freq_base=10000.0,
        vocab_size=vocab,
        expert_count=experts,
        expert_used_count=active,
    )
    if arch == "qwen3moe":
        w.keys(expert_feed_forward_length=ff)
    w.metadata(extra or {})
    w.matrix("token_embd", vocab, width, 1.0)
    for n in range(layers):
        p = f"blk.{n}."
        w.vector(p + "attn_norm.weight", width, 1.0)
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            w.matrix(p + f"attn_{part}", rows, width)
            if arch != "llama" and part != "v":
                w.vector(p + f"attn_{part}_norm.weight", rows if arch == "olmoe" else head_dim, 1.0)
        w.matrix(p + "attn_output", width, q, 2 * q**-0.5)
        w.vector(p + "ffn_norm.weight", width, 1.0)
        w.values(p + "ffn_gate_inp.weight", rng.normal(0, 2 * width**-0.5, (experts, width)))
        w.stack(p + "ffn_gate_exps", experts, ff, width)
        w.stack(p + "ffn_up_exps", experts, ff, width)
        w.stack(p + "ffn_down_exps", experts, width, ff, 2 * ff**-0.5)
    w.vector("output_norm.weight", width, 1.0)
    w.matrix("output", vocab, width, 2 * width**-0.5)
    return w.close()


_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def transformers_sparse(model: Model, *, mistake: str = "") -> Any:
    """The model's settings and weights in the library's class of its architecture.

    `mistake`: "experts swapped" exchanges two of them, "renormalised otherwise" does what the family does not.
    """
    import torch
    from transformers import (
        MixtralConfig,
        MixtralForCausalLM,
        OlmoeConfig,
        OlmoeForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    spec, moe, rope = model.spec, model.spec.moe, model.spec.rope
    assert moe is not None and rope is not None
    own: dict[str, Any] = {"num_local_experts": moe.router.experts, "head_dim": spec.head_dim}
    if spec.arch != "llama":
        renormalise = moe.router.renormalise ^ (mistake == "renormalised otherwise")
        own = {"num_experts": moe.router.experts, "norm_topk_prob": renormalise}
    if spec.arch == "qwen3moe":
        own |= {"moe_intermediate_size": moe.ff, "head_dim": spec.head_dim}
    configs = {"llama": MixtralConfig, "olmoe": OlmoeConfig, "qwen3moe": Qwen3MoeConfig}
    classes = {"llama": MixtralForCausalLM, "olmoe": OlmoeForCausalLM, "qwen3moe": Qwen3MoeForCausalLM}
    config = configs[spec.arch](
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        intermediate_size=spec.ff,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.norm_eps,
        num_experts_per_tok=moe.router.active,
        rope_parameters={"rope_type": "default", "rope_theta": rope.base},
        tie_word_embeddings=False,
        hidden_act="silu",
        **own,
    )
    net = classes[spec.arch](config)
    order = list(range(moe.router.experts))
    if mistake == "experts swapped":
        order[0], order[1] = order[1], order[0]
    state = {}
    for name in model.file.tensors:
        if "_exps." not in name:
            state[_translate(name)] = torch.tensor(_halves(model, name))
    for n in range(spec.layers):
        gate, up, down = (
            model.file.float32(f"blk.{n}.ffn_{part}_exps.weight")[order] for part in ("gate", "up", "down")
        )
        at = f"model.layers.{n}.mlp.experts."
        state[at + "gate_up_proj"] = torch.tensor(np.concatenate([gate, up], axis=1))
        state[at + "down_proj"] = torch.tensor(down)
    net.load_state_dict(state, strict=True)
    return net.train(False)


def _halves(model: Model, name: str) -> Any:
    """Query and key rows of Llama's files are ordered for rotation of neighbours: row 2i + j becomes i + j * half."""
    values = model.file.float32(name)
    if model.spec.arch == "llama" and ("attn_q." in name or "attn_k." in name):
        heads = values.reshape(-1, model.spec.head_dim // 2, 2, model.spec.width)
        return heads.swapaxes(1, 2).reshape(values.shape)
    return values


def _translate(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _ENDS:
        return _ENDS[stem] + ".weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.weight"
