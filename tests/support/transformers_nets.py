"""The same weights in the `transformers` library, in float32: one network for each family."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.families.gemma3 import Gemma3Spec
from support.models import Model

Floats = NDArray[np.float32]
Change = Callable[[str, Floats], Floats]  # of a tensor by its name in the file

_DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_GEMMA3 = _DECODER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}


def llama_net(model: Model, *, rope: Mapping[str, Any] | None = None) -> Any:
    """A LlamaForCausalLM; `rope` adds to or replaces its rotation's parameters.

    The file's query and key rows are ordered for rotation of neighbours, transformers rotates halves: row 2i + j of a
    head (i < head_dim / 2) becomes row i + j * head_dim / 2.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    def unpermute(name: str, values: Floats) -> Floats:
        if "attn_q." not in name and "attn_k." not in name:
            return values
        heads = values.reshape(-1, model.spec.head_dim // 2, 2, model.spec.width)
        return heads.swapaxes(1, 2).reshape(values.shape)

    return _load(LlamaForCausalLM, LlamaConfig(**_sizes(model, rope)), model, _DECODER, unpermute)


def qwen2_net(model: Model, *, change: Change = lambda _, values: values) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _load(Qwen2ForCausalLM, Qwen2Config(**_sizes(model), use_sliding_window=False), model, _DECODER, change)


def qwen3_net(model: Model, *, change: Change = lambda _, values: values) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _load(Qwen3ForCausalLM, Qwen3Config(**_sizes(model), use_sliding_window=False), model, _DECODER, change)


def gemma3_net(model: Model, *, change: Change = lambda _, values: values) -> Any:
    """A Gemma3ForCausalLM, whose norms multiply by 1 + w where the file has the sum."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    spec = model.spec
    assert isinstance(spec, Gemma3Spec) and spec.rope and spec.local_rope

    def less_one(name: str, values: Floats) -> Floats:
        values = change(name, values)
        return values - 1 if "norm" in name else values

    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": spec.rope.base},
        "sliding_attention": {"rope_type": "default", "rope_theta": spec.local_rope.base},
    }
    config = Gemma3TextConfig(
        **(_sizes(model) | {"rope_parameters": rope}),
        sliding_window=spec.window,
        layer_types=["sliding_attention" if local else "full_attention" for local in spec.local],
        query_pre_attn_scalar=round(spec.scale**-2),
        hidden_activation="gelu_pytorch_tanh",
    )
    return _load(Gemma3ForCausalLM, config, model, _GEMMA3, less_one)


def gpt2_net(model: Model, *, change: Change = lambda _, values: values) -> Any:
    """A GPT2LMHeadModel, whose matrices are (inputs, outputs)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    spec = model.spec
    config = GPT2Config(
        vocab_size=spec.vocab,
        n_positions=spec.context,
        n_embd=spec.width,
        n_layer=spec.layers,
        n_head=spec.heads,
        n_inner=spec.ff,
        layer_norm_epsilon=spec.norm_eps,
        activation_function="gelu_new",
    )

    def turned(name: str, values: Floats) -> Floats:
        values = change(name, values)
        return values.T if name.startswith("blk.") and values.ndim == 2 else values

    return _load(GPT2LMHeadModel, config, model, _GPT2, turned, layer="transformer.h")


def _sizes(model: Model, rope: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the configs of decoders call their sizes."""
    spec = model.spec
    assert spec.rope is not None
    return {
        "vocab_size": spec.vocab,
        "hidden_size": spec.width,
        "intermediate_size": spec.ff,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope.base, **(rope or {})},
        "tie_word_embeddings": "output.weight" not in model.file.tensors,
    }


def _load(
    net_class: Any, config: Any, model: Model, names: Mapping[str, str], change: Change, *, layer: str = "model.layers"
) -> Any:
    """The network with the file's tensors under its own names: all of them, and none lacking but a tied head."""
    import torch

    config._attn_implementation = "eager"
    net = net_class(config)
    state = {}
    for name in model.file.tensors:
        if name == "rope_freqs.weight":  # transformers derives them from its settings
            continue
        *place, part, kind = name.split(".")
        theirs = f"{layer}.{place[1]}.{names[part]}" if place else names[part]
        values = np.ascontiguousarray(change(name, model.file.float32(name)))
        state[f"{theirs}.{kind}"] = torch.tensor(values)
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    net.tie_weights()
    return net.train(False)


def net_logits(net: Any, ids: Sequence[int]) -> Floats:
    """Logits of every position, (tokens, vocab)."""
    import torch

    with torch.inference_mode():
        return net(torch.tensor([list(ids)])).logits[0].numpy()  # type: ignore[no-any-return]
