"""Families with experts: what their settings say of the routers, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaseline import SamplingParams, load
from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.families import model_program
from phaseline.families.moe import read_moe
from phaseline.families.spec import MoeSpec, Settings
from phaseline.files.gguf import open_gguf
from phaseline.program.cost import decode_work, prefill_work, step_cost
from phaseline.program.ops import Experts, Route, Router
from phaseline.program.sparse import distinct_experts
from support.sparse import ARCHS, write_sparse
from support.tiny import write_llama


def settings(**values: Any) -> Settings:
    return Settings({f"a.{key}": value for key, value in values.items()}, "a")


def test_routers_as_families_have_them() -> None:
    mixtral = read_moe(settings(expert_count=8, expert_used_count=2), 96, renormalise=True)
    assert mixtral == MoeSpec(Router(8, 2, renormalise=True), 96)
    v2 = settings(
        expert_count=64,
        expert_used_count=6,
        expert_feed_forward_length=48,
        expert_shared_count=2,
        expert_weights_scale=16.0,
        expert_group_count=8,
        expert_group_used_count=3,
        leading_dense_block_count=1,
    )
    assert read_moe(v2, 512, renormalise=False) == MoeSpec(
        Router(64, 6, groups=8, kept_groups=3, scale=16.0), 48, 96, 1
    )
    v3 = settings(
        expert_count=16,
        expert_used_count=4,
        expert_gating_func=2,
        expert_weights_norm=True,
        expert_weights_scale=2.5,
        expert_group_count=4,
        expert_group_used_count=2,
    )
    expected = Router(16, 4, "sigmoid", groups=4, kept_groups=2, group_best=2, renormalise=True, scale=2.5)
    assert read_moe(v3, 32, renormalise=False) == MoeSpec(expected, 32)
    assert read_moe(settings(expert_count=0, expert_used_count=0), 32, renormalise=True) is None
    assert read_moe(settings(), 32, renormalise=True) is None


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"expert_count": 8}, FileFormatError, "expert_used_count is missing"),
        ({"expert_count": 8, "expert_used_count": 9}, FileFormatError, "expert_used_count is 9; accepted: 1 to 8"),
        ({"expert_used_count": 2}, UnsupportedError, "expert_used_count = 2 is not supported"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_gating_func": 3}, UnsupportedError, "gating_func = 3"),
        ({"expert_count": 8, "expert_used_count": 2, "expert_group_count": 3}, UnsupportedError, "3 equal groups"),
    ],
)
def test_settings_that_no_router_has(values: dict[str, Any], error: type[PhaselineError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_moe(settings(**values), 32, renormalise=True)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_step_is_priced_by_the_experts_it_is_expected_to_touch(tmp_path: Path, arch: str) -> None:
    with open_gguf(write_sparse(tmp_path / "a.gguf", arch, format="Q4_1", experts=8, active=3, layers=2)) as file:
        spec, program = model_program(file)
        assert spec.moe and spec.moe.router == replace(Router(8, 3), renormalise=arch != "olmoe")
        found = [op for op in program.ops if isinstance(op, Experts)]
        assert len(found) == 2 == sum(isinstance(op, Route) for op in program.ops)
        one = sum(file.tensors[f"blk.0.ffn_{part}_exps.weight"].nbytes for part in ("gate", "up", "down")) / 8
        decode = step_cost(program, decode_work(10))
        assert decode.routed_bytes == pytest.approx(2 * 3 * one)
        many = step_cost(program, prefill_work(5))
        assert many.routed_bytes == pytest.approx(2 * distinct_experts(8, 3, 5) * one)
        whole = step_cost(program, prefill_work(1000))
        assert whole.routed_bytes == pytest.approx(2 * 8 * one)
        assert whole.shared_bytes + whole.routed_bytes == whole.weight_bytes


def test_a_missing_stack_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "a.gguf", extra={"llama.expert_count": 4, "llama.expert_used_count": 2})
    with pytest.raises(FileFormatError, match=r"tensor 'blk\.0\.ffn_gate_inp\.weight' is missing"):
        load(path)


def test_dispatch_is_a_mode_of_sparse_models(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="mode dispatch reads experts row by row: this model has none"):
        load(write_llama(tmp_path / "dense.gguf"), mode="dispatch")
    path = write_sparse(tmp_path / "sparse.gguf", "olmoe")
    params = SamplingParams(max_tokens=8, temperature=0)
    said = [load(path, mode=mode, threads=1).generate("a few words", params).text for mode in ("chunk", "dispatch")]
    assert said[0] == said[1]
