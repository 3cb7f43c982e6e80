"""Shapes of models for the paper calculator: sums, config.json files, programs."""

from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import FileFormatError, PhaselineError, RequestError, UnsupportedError
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.lab.hf_config import KINDS, shape_from_config
from phaseline.lab.shapes import Shape, shape_from_params, shape_from_program
from phaseline.program.cost import decode_work, prefill_work, step_cost, weight_bytes
from phaseline.program.ir import Program, Rows, Value
from phaseline.program.ops import Attend, DeltaAttend, Route
from phaseline.program.state import PagedKV, SlidingKV
from support.deepseek import write_deepseek
from support.kimi import write_kimi
from support.models import half_windowed
from support.sparse import write_sparse
from support.tiny import write_llama

# Published configurations, as far as they matter.
LLAMA_2_7B = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "float16"},
}
MIXTRAL_8X7B = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768},
    **{"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "torch_dtype": "bfloat16"},
}
QWEN3_30B_A3B = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48},
    **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936},
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "max_position_embeddings": 40960},
}
DEEPSEEK_V3 = {
    **{"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61},
    **{"num_attention_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840, "q_lora_rank": 1536},
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048},
    **{"first_k_dense_replace": 3, "moe_layer_freq": 1, "quantization_config": {"quant_method": "fp8"}},
}


KIMI_LINEAR_48B_A3B = {
    **{"model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27},
    **{"num_attention_heads": 32, "vocab_size": 163840, "model_max_length": 1048576, "q_lora_rank": None},
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "dtype": "bfloat16"},
    **{"num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024},
    **{"first_k_dense_replace": 1, "moe_layer_freq": 1, "tie_word_embeddings": False},
    "linear_attn_config": {
        **{
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        },
        "kda_layers": [n for n in range(1, 27) if n % 4],
    },
}


def from_config(config: dict[str, Any], **options: Any) -> Shape:
    return shape_from_config(config, "config.json", **options)


@pytest.mark.parametrize(
    ("config", "total", "active", "bytes_per_position"),
    [
        (LLAMA_2_7B, 6.74e9, 6.74e9, 2**19),
        (MIXTRAL_8X7B, 46.7e9, 12.9e9, 2 * 32 * 8 * 128 * 2),
        (QWEN3_30B_A3B, 30.5e9, 3.3e9, 2 * 48 * 4 * 128 * 2),
        (DEEPSEEK_V3, 671e9, 37.5e9, 61 * 576 * 2),  # the active ones are published as 37 B, with the embedding's row
    ],
    ids=lambda value: str(value["model_type"]) if isinstance(value, dict) else "",
)
def test_published_models_have_their_published_sizes(
    config: dict[str, Any], total: float, active: float, bytes_per_position: int
) -> None:
    shape = from_config(config)
    assert shape.total.params == pytest.approx(total, rel=0.003)
    assert shape.row.params + shape.held.params == pytest.approx(active, rel=0.03)
    assert shape.kv_bytes == bytes_per_position


def test_what_kimi_linear_carries_on_has_its_published_size() -> None:
    """Published as 48 B parameters, 3 B of them active."""
    shape = from_config(KIMI_LINEAR_48B_A3B)
    assert shape.total.params == pytest.approx(48e9, rel=0.03) and shape.row.params == pytest.approx(3e9, rel=0.05)
    assert (shape.kv_bytes, shape.context) == (7 * 576 * 2, 1 << 20)
    assert shape.stream_bytes == 20 * 4 * (32 * 128 * 128 + 3 * 3 * 32 * 128)
    assert any("delta rule" in text for text in shape.assumptions)


TINY = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 512},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": None},
}
LATENT = {
    **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12},
    **{"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1},
}
TINY_DELTA = {
    **{"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 3},
    **{"kda_layers": [1, 3], "full_attn_layers": [2]},
}
OWN: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"num_experts": 8, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {"num_experts": 8},
    "mixtral": {"num_local_experts": 8},
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT,
    "kimi_linear": {
        **{key: value for key, value in LATENT.items() if "routed" not in key},
        **{"num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 2, "model_max_length": 512},
        **{"pad_token_id": None, "linear_attn_config": TINY_DELTA},
    },
}


@pytest.mark.parametrize(
    ("kind", "tied"), [(k, t) for k in KINDS for t in (False, True) if k != "kimi_linear" or not t]
)
def test_a_config_has_the_matrices_that_transformers_builds_from_it(kind: str, tied: bool) -> None:
    torch = pytest.importorskip("torch", reason="the reference torch is not installed")
    transformers = pytest.importorskip("transformers", reason="the reference transformers is not installed")
    written = {**TINY, **OWN.get(kind, {}), "tie_word_embeddings": tied}
    config = transformers.AutoConfig.for_model(kind, **written)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    left_out = ("conv1d.weight", "A_log")
    matrices = {name: p for name, p in model.named_parameters() if p.ndim > 1 and not name.endswith(left_out)}
    shape = from_config({"model_type": kind, **written})
    assert shape.total.params == sum(p.numel() for p in matrices.values())
    experts = sum(p.numel() for name, p in matrices.items() if ".experts." in name)
    assert shape.expert.params * shape.experts == experts
    assert shape.held.params == (0 if tied else 320 * 64)


def test_latent_attention_serves_all_heads_from_one_row() -> None:
    shape = from_config(DEEPSEEK_V3)
    assert shape.group == 128 and shape.prefill_group == 1
    # per element stored of each position: 128 heads, two FLOP for the score and two for the value, where it has both
    assert shape.pair_flops == 61 * 128 * 2 * (576 + 512)
    assert shape.prefill_pair_flops == 61 * 128 * 2 * (128 + 64 + 128)  # expanded, each head has its own


def test_bits_of_a_weight() -> None:
    def bits(config: dict[str, Any], **options: Any) -> float:
        total = from_config(config, **options).total
        return 8 * total.bytes / total.params

    assert bits(LLAMA_2_7B) == 16
    assert bits(LLAMA_2_7B | {"torch_dtype": "float32"}) == 32
    assert bits(QWEN3_30B_A3B) == 16  # no type is named
    assert bits(DEEPSEEK_V3) == 8
    assert bits(DEEPSEEK_V3, weight_bits=4.5) == pytest.approx(4.5)


def test_a_window_bounds_what_attention_reads() -> None:
    config = {**LLAMA_2_7B, "model_type": "mistral", "num_key_value_heads": 8, "sliding_window": 1000}
    shape, whole = from_config(config), from_config({**config, "sliding_window": None})
    assert (shape.reach(400), shape.reach(4000), whole.reach(4000)) == (400, 1000, 4000)
    for start, rows in ((0, 300), (0, 2500), (700, 600), (3000, 5)):
        assert shape.pairs(start, rows) == sum(min(1000, start + i + 1) for i in range(rows))
        assert whole.pairs(start, rows) == sum(start + i + 1 for i in range(rows))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(({key: None}, f"{key} is missing") for key in LLAMA_2_7B if key not in ("model_type", "torch_dtype")),
        ({"model_type": None}, "model_type None is not supported .supported: llama, mistral"),
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"model_type": "qwen3"}, "num_key_value_heads is missing"),
        ({"model_type": "qwen3", "num_key_value_heads": 8}, "head_dim is missing"),
        ({"model_type": "mistral", "num_key_value_heads": 8}, "sliding_window is missing"),
        ({"hidden_size": 4096.0}, "hidden_size is 4096.0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776"),
        ({"num_attention_heads": 33}, "hidden_size 4096 does not divide by 33"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 does not divide by 5"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"torch_dtype": "int3"}, "torch_dtype 'int3'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "--weight-bits"),
        ({"layer_types": ["sliding_attention"] * 32}, "layer_types"),
        ({"model_type": "qwen2", "num_key_value_heads": 8, "use_sliding_window": True}, "use_sliding_window = True"),
    ],
    ids=str,
)
def test_what_is_not_known_of_a_config_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PhaselineError, match=said):
        from_config(LLAMA_2_7B | change)


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        (MIXTRAL_8X7B, {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, of 8 experts"),
        (MIXTRAL_8X7B, {"num_local_experts": None}, "num_local_experts is missing"),
        (QWEN3_30B_A3B, {"num_experts": None}, "num_local_experts is missing"),
        (QWEN3_30B_A3B, {"decoder_sparse_step": 2}, "decoder_sparse_step = 2"),
        (QWEN3_30B_A3B, {"mlp_only_layers": [0]}, "mlp_only_layers"),
        (DEEPSEEK_V3, {"first_k_dense_replace": 62}, "first_k_dense_replace is 62"),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        (KIMI_LINEAR_48B_A3B, {"routed_expert_hidden_size": 3584}, "routed_expert_hidden_size = 3584"),
        (KIMI_LINEAR_48B_A3B, {"linear_attn_config": None}, "linear_attn_config is None; an object is needed"),
        (KIMI_LINEAR_48B_A3B, {"tie_word_embeddings": True}, "tie_word_embeddings = True"),
        (KIMI_LINEAR_48B_A3B, {"linear_attn_config": {}}, "num_heads is missing"),
        (KIMI_LINEAR_48B_A3B, {"num_experts": None}, "num_experts is missing"),
    ],
)
def test_mixtures_of_another_kind_are_refused(config: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises((FileFormatError, UnsupportedError), match=said):
        from_config(config | change)


def test_sums_split_into_shared_and_routed_weights() -> None:
    shape = shape_from_params(100e9, params_active=20e9, experts=64, experts_active=4, weight_bits=8)
    assert shape.total.params == pytest.approx(100e9) and shape.row.params == pytest.approx(20e9)
    assert shape.expert.params == pytest.approx(80e9 / 60)
    assert shape.read_bytes(1) == pytest.approx(20e9)
    assert shape.read_bytes(10**6) == pytest.approx(100e9)
    unknown = shape_from_params(100e9, params_active=20e9, weight_bits=8)
    assert unknown.total.bytes == 100e9 and unknown.read_bytes(1) == unknown.read_bytes(1000) == 20e9
    assert any("not known" in text for text in unknown.assumptions)


def test_grouped_queries_multiply_the_arithmetic_of_attention_alone() -> None:
    one, eight = (shape_from_params(1e9, kv_bytes_per_token=1e5, query_group=group) for group in (1, 8))
    assert (one.kv_bytes, eight.kv_bytes) == (1e5, 1e5)
    assert (one.pair_flops, eight.pair_flops) == (1e5, 8e5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"params": 0.0}, "params = 0"),
        ({"params": float("inf")}, "params = inf"),
        ({"params": 1e9, "params_active": 2e9}, "params_active = 2e[+]09"),
        ({"params": 1e9, "weight_bits": -8.0}, "weight_bits = -8"),
        ({"params": 1e9, "kv_bytes_per_token": 0.0}, "kv_bytes_per_token = 0"),
        ({"params": 1e9, "experts": 8}, "go together"),
        ({"params": 1e9, "experts": 8, "experts_active": 2}, "go together"),
        ({"params": 1e9, "params_active": 5e8, "experts": 8, "experts_active": 8}, "experts_active = 8"),
        ({"params": 1e9, "params_active": 1e8, "experts": 8, "experts_active": 2}, "2 of 8 experts alone hold more"),
    ],
)
def test_impossible_sums_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        shape_from_params(**options)


@pytest.mark.parametrize("tied", [False, True])
def test_a_program_costs_what_its_operations_cost(tmp_path: Path, tied: bool) -> None:
    path = write_llama(tmp_path / "tiny.gguf", format="Q8_0", heads=4, kv_heads=2, head_dim=32, tied=tied)
    with open_gguf(path) as file:
        program = model_program(file)[1]
    shape = shape_from_program(program, "tiny")
    assert shape.total.bytes == weight_bytes(program)
    assert shape.held.params == (0 if tied else 320 * 64)
    assert (shape.group, shape.context, shape.kv_bytes) == (2, 256, 2 * 2 * 2 * 32 * 2)
    for streams in (1, 5):
        step = step_cost(program, decode_work(99, streams=streams))
        rotations = streams * 2 * 3 * (4 + 2) * 32  # in two layers, three FLOP per element of queries and keys
        assert step.flops - rotations == streams * (2 * shape.row.params + 100 * shape.pair_flops)
        looked_up = streams * 64 * 34 / 32
        assert step.weight_bytes - looked_up == shape.read_bytes(streams)
    halved = shape_from_program(program, "tiny", weight_bits=4, kv_element_bytes=4)
    assert halved.total.bytes == pytest.approx((shape.total.params + 5 * 64) / 2)  # five norms of 64
    assert halved.kv_bytes == 2 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("context", [20, 40, 99])
def test_a_program_with_some_windows_costs_what_its_operations_cost(tmp_path: Path, context: int) -> None:
    with open_gguf(write_llama(tmp_path / "tiny.gguf", heads=4, kv_heads=2, head_dim=32)) as file:
        program = half_windowed(model_program(file)[1], 40)
    shape = shape_from_program(program, "tiny")
    assert (shape.window, shape.windowed, shape.kv_bytes) == (40, 0.5, 2 * 2 * 2 * 32 * 2)
    attends = [op for op in program.ops if isinstance(op, Attend)]
    for work in (decode_work(context - 1), prefill_work(17, start=context - 17)):
        (span,) = work.spans
        flops = sum(op.cost(work).flops for op in attends)
        assert shape.pairs(span.start, span.n) * shape.pair_flops == flops
    assert shape.reach(context) * shape.pair_flops == sum(op.cost(decode_work(context - 1)).flops for op in attends)
    assert shape.reach(context, 17) == (context + min(context, 57)) / 2


def test_what_a_program_carries_on_does_not_grow_with_the_context(tmp_path: Path) -> None:
    """Of delta attention: state and window, in float32 whatever type other state has; by its own arithmetic short."""
    with open_gguf(write_kimi(tmp_path / "tiny.gguf")) as file:
        program = model_program(file)[1]
    shape = shape_from_program(program, "tiny", kv_element_bytes=1)
    assert (shape.kv_bytes, shape.stream_bytes) == (80, 4 * 4 * (4 * 16 * 16 + 3 * 3 * 64))
    assert shape.pair_flops == 2 * 4 * (80 + 64) and shape.experts == 8
    work = decode_work(99, kv_bytes=1)
    assert step_cost(program, work).state_bytes == 2 * shape.stream_bytes + 101 * shape.kv_bytes
    delta = sum(op.cost(work).flops for op in program.ops if isinstance(op, DeltaAttend))
    routing = sum(op.cost(work).flops for op in program.ops if isinstance(op, Route))
    flops = step_cost(program, work).flops
    assert flops - delta - routing == 2 * shape.row.params + 100 * shape.pair_flops
    assert shape.total.bytes == pytest.approx(weight_bytes(program))


def test_windows_of_several_lengths_are_more_than_the_calculator_knows() -> None:
    state = [PagedKV(1, 1, 16), *(SlidingKV(1, 1, 16, window) for window in (512, 128))]
    program = Program([], [], state, Value("logits", Rows.WANTED, 8), 8, 1024)
    with pytest.raises(UnsupportedError, match="takes one window, not 128, 512"):
        shape_from_program(program, "two")


ALIKE: dict[str, Any] = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 320},
    **{"max_position_embeddings": 512, "moe_intermediate_size": 32, "num_experts_per_tok": 3, "torch_dtype": "float32"},
}
SPARSE = {"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2, "num_experts": 8}
ONE_ROW: dict[str, Any] = {
    **{"num_hidden_layers": 3, "q_lora_rank": None, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16},
    **{"v_head_dim": 32, "n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 1},
}


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v2", "deepseek_v2 fused"])
def test_a_program_with_experts_and_latents_has_the_shape_of_its_config(tmp_path: Path, kind: str) -> None:
    if kind == "qwen3_moe":
        path = write_sparse(tmp_path / "tiny.gguf", "qwen3moe")
    else:
        path = write_deepseek(tmp_path / "tiny.gguf", fused="fused" in kind)
    model_type = kind.removesuffix(" fused")
    config = from_config({**ALIKE, **(SPARSE if kind == "qwen3_moe" else ONE_ROW), "model_type": model_type})
    with open_gguf(path) as file:
        program = model_program(file)[1]
    shape = shape_from_program(program, "tiny")
    for part in ("every_row", "wanted", "held", "expert"):
        assert getattr(shape, part).params == pytest.approx(getattr(config, part).params)
    same = ("experts", "active", "kv_bytes", "pair_flops", "prefill_pair_flops", "group", "prefill_group", "context")
    assert [getattr(shape, name) for name in same] == [getattr(config, name) for name in same]
    assert shape.experts * shape.expert.bytes == pytest.approx(config.experts * config.expert.bytes)
    assert shape.total.bytes == pytest.approx(weight_bytes(program))
    step = step_cost(program, decode_work(99, streams=5))
    looked_up, norms = 5 * 64 * 4, 3 * 64 * 4 * 3  # norms that several operations of a layer apply count once here
    assert shape.read_bytes(5) == pytest.approx(step.weight_bytes - looked_up, abs=norms)
