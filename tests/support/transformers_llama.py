"""The same weights in the `transformers` library, in float32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.models import Model

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def transformers_llama(model: Model, *, unpermute: bool = True) -> Any:
    """A LlamaForCausalLM with the file's settings and weights, decoded by our formats.

    The file's query and key rows are ordered for rotation of neighbours, transformers rotates halves: row 2i + j of a
    head (i < head_dim / 2) becomes row i + j * head_dim / 2. `unpermute=False` leaves them, which is wrong.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    spec, rope = model.spec, model.spec.rope
    assert rope is not None
    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        intermediate_size=spec.ff,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": rope.base},
        tie_word_embeddings="output.weight" not in model.file.tensors,
        attention_bias=False,
        mlp_bias=False,
        hidden_act="silu",
    )
    state = {}
    for name in model.file.tensors:
        values = model.file.float32(name)
        if unpermute and ("attn_q." in name or "attn_k." in name):
            heads = values.reshape(-1, spec.head_dim // 2, 2, spec.width)
            values = heads.swapaxes(1, 2).reshape(values.shape)
        state[_translate(name)] = torch.tensor(values)
    with torch.device("meta"):
        net = LlamaForCausalLM(config)
    net.to_empty(device="cpu")
    net.model.rotary_emb = type(net.model.rotary_emb)(config)  # its frequencies are no weights
    missing, unexpected = net.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    net.tie_weights()
    return net.train(False)


def transformers_logits(net: Any, ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits of every position, (tokens, vocab)."""
    import torch

    with torch.inference_mode():
        return net(torch.tensor([list(ids)])).logits[0].numpy()  # type: ignore[no-any-return]


def _translate(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _ENDS:
        return _ENDS[stem] + ".weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.weight"
