"""Hugging Face folders as transformers saves them, against transformers itself in float32 on the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseline.files.model_file import open_model_file
from phaseline.files.recode import RecodedFile
from support.folders import write_gguf
from support.models import logits, open_model, relative_error
from support.transformers_llama import transformers_logits

torch = pytest.importorskip("torch", reason="the reference torch is not installed")
transformers = pytest.importorskip("transformers", reason="the reference transformers is not installed")

TOKENS = 75  # more than two pages, and than two chunks
CHUNK = 31
NEAR = 5e-5  # of the largest logit; in Kimi Linear those of transformers are themselves up to 2e-5 off
COMMON: dict[str, Any] = {
    **{"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 128, "intermediate_size": 64, "initializer_range": 0.3},
    **{"bos_token_id": 1, "eos_token_id": 2},
}


def like(**others: Any) -> dict[str, Any]:
    return COMMON | others


def turning(**rope: Any) -> dict[str, Any]:
    return COMMON | {"rope_parameters": {"rope_theta": 10000.0, **rope}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
OWN_YARN = {"attention_factor": 1.2, "beta_fast": 4, "beta_slow": 2, "original_max_position_embeddings": 16}
GEMMA = {"head_dim": 16, "num_hidden_layers": 7, "sliding_window": 20, "query_pre_attn_scalar": 24}
DEEPSEEK: dict[str, Any] = {
    **{"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 2},
    **{"first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "num_key_value_heads": 4},
    **{"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
}
KIMI: dict[str, Any] = {  # with four experts a row, of which no rounding here chooses another
    **{"num_local_experts": 6, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "num_hidden_layers": 5},
    **{"num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
    **{"linear_head_dim": 32, "linear_num_heads": 4, "pad_token_id": None},
}
DEEPSEEK_YARN = {
    **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32},
    **{"mscale": 0.7, "mscale_all_dim": 0.7},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", like()),
    "llama tied": ("LlamaConfig", like(tie_word_embeddings=True, head_dim=16)),
    "llama 3": ("LlamaConfig", turning(rope_type="llama3", **LLAMA3)),
    "linear": ("LlamaConfig", turning(rope_type="linear", factor=4.0)),
    "yarn": ("LlamaConfig", turning(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "yarn of its own": ("Qwen2Config", turning(rope_type="yarn", factor=8.0, **OWN_YARN)),
    "mistral": ("MistralConfig", like(sliding_window=None, num_key_value_heads=1)),
    "gpt2": ("GPT2Config", {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}),
    "qwen2": ("Qwen2Config", like()),
    "qwen3": ("Qwen3Config", like(head_dim=16)),
    "mixtral": ("MixtralConfig", like(num_local_experts=5, num_experts_per_tok=2)),
    "olmoe": ("OlmoeConfig", like(num_experts=5, num_experts_per_tok=2)),
    "olmoe renormalised": ("OlmoeConfig", like(num_experts=4, num_experts_per_tok=3, norm_topk_prob=True)),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        like(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, norm_topk_prob=True),
    ),
    "deepseek_v2": ("DeepseekV2Config", like(**DEEPSEEK, q_lora_rank=None)),
    "deepseek_v2 in groups": (
        "DeepseekV2Config",
        like(**DEEPSEEK, q_lora_rank=24, topk_method="group_limited_greedy", n_group=3, topk_group=2),
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        like(**DEEPSEEK, q_lora_rank=24, n_group=3, topk_group=2, rope_parameters=DEEPSEEK_YARN),
    ),
    "kimi_linear": ("KimiLinearConfig", like(**KIMI)),
    "gemma3": ("Gemma3TextConfig", like(**GEMMA)),
    "gemma3 otherwise": (
        "Gemma3TextConfig",
        like(**GEMMA | {"layer_types": ["full_attention", *["sliding_attention"] * 3], "num_hidden_layers": 4}),
    ),
}
SAVED = [("float32", 1), ("bfloat16", 3), ("float16", 1)]


def save(folder: Path, name: str, dtype: str = "float32", shards: int = 1) -> Any:
    """Save a random model of that name and type, and return it as transformers loads it, in float32."""
    kind, settings = MODELS[name]
    torch.manual_seed(7)
    net = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings))
    for parameter in net.parameters():
        if parameter.ndim == 1:  # norms and biases, which begin as ones and zeros
            parameter.data += 0.3 * torch.randn_like(parameter)
    net = net.to(getattr(torch, dtype))
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    net.save_pretrained(folder, max_shard_size=size // shards + 200)
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (shards > 1)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train(False)


def prompt() -> list[int]:
    return np.random.default_rng(3).integers(0, 96, TOKENS).tolist()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "shards"), SAVED)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, dtype: str, shards: int) -> None:
    """Plain weights keep float32 throughout, in the reference and in the kernels."""
    net = save(tmp_path / "m", name, dtype, shards)
    want = transformers_logits(net, prompt())
    file = open_model_file(tmp_path / "m")
    model = open_model(file)
    assert relative_error(logits(model.reference(), prompt(), chunk=CHUNK), want) <= NEAR
    native = model.native(kv_type="f32", threads=2)
    assert relative_error(logits(native, prompt(), chunk=CHUNK), want) <= NEAR
    one_by_one = logits(native, prompt()[:40], chunk=1)
    assert np.array_equal(one_by_one, logits(native, prompt()[:40]))
    file.close()


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_file_of_the_same_model(tmp_path: Path, name: str) -> None:
    """What a folder presents is what a GGUF file holds: written into one, it gives the same bits."""
    save(tmp_path / "m", name, "bfloat16")
    folder = open_model_file(tmp_path / "m")
    gguf = open_model_file(write_gguf(tmp_path / "m.gguf", folder))
    assert gguf.tensors == folder.tensors
    ours, theirs = (logits(open_model(file).native(kv_type="f32"), prompt(), chunk=CHUNK) for file in (folder, gguf))
    if name == "yarn of its own":  # a factor that GGUF rounds to float32
        assert relative_error(ours, theirs) <= 1e-5
    else:
        assert np.array_equal(ours, theirs)


def test_the_comparison_sees_an_unturned_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Query and key rows left as the folder has them rotate wrongly."""
    monkeypatch.setattr("phaseline.files.hf.dense.neighbours", lambda heads: None)
    want = transformers_logits(save(tmp_path / "m", "llama"), prompt())
    assert relative_error(logits(open_model(open_model_file(tmp_path / "m")).reference(), prompt()), want) > 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_weights_held_as_q8_0(tmp_path: Path, name: str) -> None:
    """What the kernels make of them is what the specification makes of them, and not what it makes of the original."""
    net = save(tmp_path / "m", name, "bfloat16")
    model = open_model(RecodedFile(open_model_file(tmp_path / "m"), "q8_0"))
    assert "Q8_0" in {info.format.name for info in model.program.weights().values()}
    want = logits(model.reference(), prompt())
    assert relative_error(logits(model.native(kv_type="f32"), prompt(), chunk=CHUNK), want) <= 1e-2
    assert relative_error(want, transformers_logits(net, prompt())) > 1e-4
