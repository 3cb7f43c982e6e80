"""A shape on some hardware: the record of the paper calculator, against the cost model of programs and by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import RequestError
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.lab.estimate import Case, estimate
from phaseline.lab.hardware import Hardware
from phaseline.lab.hf_config import shape_from_config
from phaseline.lab.shapes import shape_from_params, shape_from_program
from phaseline.program.cost import prefill_work, step_cost
from support.tiny import write_llama

MS = 1e-3
STREAM = 8192 * 100e3
SLOW_READ = Hardware("slow reader", {"bf16": 1e30, "int8": 1e30}, 1e3, 1e9, "a test")
SLOW_SUMS = Hardware("slow sums", {"bf16": 1e6, "int8": 4e6}, 1e30, 1e9, "a test")


def case(**changes: Any) -> Case:
    return replace(Case(context=200, batches=(1, 8), chunk=50, compute="int8"), **changes)


def test_the_whole_quiz_through_the_estimate() -> None:
    shape = shape_from_params(30e9, weight_bits=8, kv_bytes_per_token=100e3)
    chip = Hardware("quiz", {"bf16": 197e12}, 0.81e12, 16e9, "a textbook")
    found = estimate(shape, chip.times(16), Case(context=8192, batches=(4, 256), chunk=512, compute="bf16"))
    few, many = found["steps"][1:]
    assert (few["step_s"], many["step_s"]) == (pytest.approx(2.57 * MS, rel=0.01), pytest.approx(21.05 * MS, rel=0.01))
    assert (few["product_limit"], few["attention_limit"]) == ("bandwidth", "bandwidth")
    assert (many["product_limit"], many["attention_limit"]) == ("compute", "bandwidth")
    assert found["largest_batch"] == 275 == (16 * 16e9 - 30e9) // STREAM
    assert found["critical_batch"] == pytest.approx(243 / 2, rel=0.01)  # a parameter of one byte
    assert found["kv"] == {"bytes_per_position": 100e3, "fixed_bytes": 0, "bytes_per_stream": STREAM}


def test_a_7b_model_on_303_gb_per_s() -> None:
    card = Hardware("card", {"bf16": 100e12}, 303e9, 24e9, "a data sheet")
    found = estimate(shape_from_params(7e9), card, case(compute="bf16"))
    assert found["shape"]["weight_bytes"] == 14e9
    assert found["decode_floor"]["seconds"] == pytest.approx(46 * MS, rel=0.01)
    assert found["decode_floor"]["tok_s"] == pytest.approx(21.6, rel=0.01)


@pytest.mark.parametrize(("context", "chunk"), [(200, 50), (200, 200), (200, 512), (1, 1)])
def test_a_chunk_of_prefill_costs_what_its_operations_cost(tmp_path: Path, context: int, chunk: int) -> None:
    with open_gguf(write_llama(tmp_path / "tiny.gguf")) as file:
        program = model_program(file)[1]
    shape = shape_from_program(program, "tiny")
    rows = min(context, chunk)
    whole = step_cost(program, prefill_work(rows, start=context - rows))
    summing, decode = estimate(shape, SLOW_SUMS, case(context=context, chunk=chunk))["steps"][:2]
    rotations = rows * 2 * 3 * (4 + 2) * 16
    flops = summing["products_s"] * 4e6 + summing["attention_s"] * 1e6  # attention computes in bf16 in any case
    assert flops == pytest.approx(whole.flops - rotations)
    assert (summing["rows"], summing["product_limit"], summing["attention_limit"]) == (rows, "compute", "compute")
    assert decode["attention_s"] * 1e6 == pytest.approx(context * 2 * 4 * 4 * 16)  # two layers, four heads of 16
    reading = estimate(shape, SLOW_READ, case(context=context, chunk=chunk))["steps"][0]
    written = rows * 2 * 2 * 2 * 16 * 2  # keys and values that the rows store: the calculator counts what is read
    assert reading["attention_s"] * 1e3 == pytest.approx(whole.state_bytes - written)
    assert reading["products_s"] * 1e3 == pytest.approx(whole.weight_bytes - rows * 64 * 4)
    assert (reading["product_limit"], reading["attention_limit"]) == ("bandwidth", "bandwidth")


def test_a_window_keeps_streams_small_and_attention_short() -> None:
    config = {
        **{"model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 4096},
    }
    position = 3 * 2 * 2 * 16 * 2
    shape = shape_from_config({**config, "sliding_window": 100}, "tiny")
    found = estimate(shape, SLOW_READ, case(context=1000))
    assert found["kv"] == {"bytes_per_position": position, "fixed_bytes": 0, "bytes_per_stream": 100 * position}
    prefill, one, eight = found["steps"]
    assert prefill["attention_s"] * 1e3 == pytest.approx(150 * position)  # the 50 rows reach back 100
    assert one["attention_s"] * 1e3 == pytest.approx(100 * position)
    assert eight["attention_s"] == pytest.approx(8 * one["attention_s"])


def test_phases_are_compared_at_one_stream() -> None:
    found = estimate(shape_from_params(1e6, kv_bytes_per_token=100.0), SLOW_READ, case(batches=(8,)))
    read = (2e6 + 200 * 100) / 1e3  # seconds: all weights, and one stream, whether for one row or for fifty
    assert found["phase_ratio"] == pytest.approx(50)
    assert found["decode_floor"]["tok_s_at_context"] == pytest.approx(1 / read)
    assert found["decode_floor"]["tok_s"] == pytest.approx(1 / 2e3)
    (eight,) = found["steps"][1:]
    assert eight["tok_s"] == pytest.approx(8e3 / (2e6 + 8 * 200 * 100))


def test_latent_attention_has_the_intensity_of_its_heads_in_decode_alone() -> None:
    config = {
        **{"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 4, "num_attention_heads": 128},
        **{"vocab_size": 1000, "max_position_embeddings": 8192, "q_lora_rank": 1536, "kv_lora_rank": 512},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256},
        **{"num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 0, "n_shared_experts": 1},
    }
    found = estimate(shape_from_config(config, "latent"), SLOW_READ, case(context=4096))
    assert found["attention_intensity"]["prefill"] == 2048
    assert found["attention_intensity"]["decode"] == pytest.approx(128, rel=1e-3)
    # a row of 576 elements is a key, and 512 of them the value too
    assert found["attention_intensity"]["decode_counted"] == pytest.approx(128 * (576 + 512) / 576)


@pytest.mark.parametrize("changes", [{"context": 0}, {"chunk": 0}, {"batches": (4, -1)}, {"context": 1 << 40}])
def test_an_impossible_case_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="it must be a whole number from 1 to"):
        estimate(shape_from_params(1e9), SLOW_SUMS, case(**changes))
