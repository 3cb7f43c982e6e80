"""The kimi-linear family: settings and tensors it reads, those it refuses by name, and the program it builds."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.families import kimi_linear, model_program
from phaseline.families.spec import DeltaSpec, LatentSpec, ModelSpec, MoeSpec
from phaseline.files.base import TensorInfo
from phaseline.files.gguf import GGUFFile, open_gguf
from phaseline.files.quant import FORMATS
from phaseline.program.cost import decode_work, prefill_work, step_cost
from phaseline.program.ops import DeltaAttend, LatentAttend, Router
from phaseline.program.state import PagedLatent, Recurrent
from support.kimi import write_kimi


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    with open_gguf(write_kimi(tmp_path_factory.mktemp("kimi") / "tiny.gguf")) as file:
        yield file


def spec(file: GGUFFile, **changed: Any) -> ModelSpec:
    """The spec with settings replaced (`__` for a dot), or left out if None."""
    meta = dict(file.metadata) | {f"kimi-linear.{name.replace('__', '.')}": value for name, value in changed.items()}
    return kimi_linear.spec_from({key: value for key, value in meta.items() if value is not None}, file.tensors)


def test_every_size_is_read(file: GGUFFile) -> None:
    router = Router(8, 3, "sigmoid", renormalise=True, scale=pytest.approx(2.446))
    assert spec(file) == ModelSpec(
        arch="kimi-linear",
        layers=5,
        width=64,
        ff=96,
        heads=4,
        kv_heads=1,
        head_dim=48,
        vocab=320,
        context=1536,
        norm_eps=pytest.approx(1e-5),
        moe=MoeSpec(router, 32, 32, 1),
        latent=LatentSpec(0, 64, 32, 16, 32, 48**-0.5),
        delta=DeltaSpec(4, 16, 4, (True, True, True, False, True)),
    )


def test_what_may_be_left_out_has_its_usual_value(file: GGUFFile) -> None:
    optional = ("attention__value_length", "rope__freq_base", "vocab_size", "expert_gating_func", "expert_weights_norm")
    assert spec(file, **dict.fromkeys(optional)) == spec(file)
    assert spec(file, expert_group_used_count=1) == spec(file)  # as converters have it, without a number of groups
    apart = spec(file, expert_weights_norm=False).moe
    assert apart and not apart.router.renormalise


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("attention__head_count_kv", None, FileFormatError, "must be a list of 5 whole numbers from 0 to 1; .*missing"),
        ("attention__head_count_kv", 1, FileFormatError, "it is 1"),
        ("attention__head_count_kv", [0, 0, 1, 0], FileFormatError, r"it is \[0, 0, 1, 0\]"),
        ("attention__head_count_kv", [0, 0, 0, 2, 0], FileFormatError, "from 0 to 1"),
        ("attention__head_count_kv", [False, False, False, True, False], FileFormatError, "it is"),
        ("attention__key_length", 64, UnsupportedError, "attention.key_length = 64"),
        ("attention__key_length_mla", None, FileFormatError, "attention.key_length_mla is missing"),
        ("attention__key_length_mla", 16, FileFormatError, "heads of 16 have no part beside the 16"),
        ("kda__head_dim", None, FileFormatError, "kda.head_dim is missing"),
        ("ssm__conv_kernel", 1, FileFormatError, "ssm.conv_kernel is 1; accepted: 2 to 64"),
        ("kda__gate_lower_bound", -5.0, UnsupportedError, "unknown setting kimi-linear.kda.gate_lower_bound"),
        ("expert_weights_norm", 1, UnsupportedError, r"weights_norm = 1 is not supported \(supported: True, False"),
        ("expert_gating_func", True, UnsupportedError, "expert_gating_func = True"),
        ("nextn_predict_layers", 1, UnsupportedError, "nextn_predict_layers = 1"),
        ("attention__sliding_window", 128, UnsupportedError, "attention.sliding_window"),
        ("rope__scaling__type", "yarn", UnsupportedError, "rope.scaling.type"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    file: GGUFFile, name: str, value: Any, error: type[PhaselineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        spec(file, **{name: value})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blk.0.ssm_conv1d_k.weight", (64, 3), r"asks? for \(64, 4\)"),
        ("blk.0.ssm_conv1d_k.weight", (4, 64), r"asks? for \(64, 4\)"),
        ("blk.0.ssm_a", (1, 3, 1), r"asks? for \(4, 1\)"),
        ("blk.0.ssm_f_b.weight", (64, 32), r"asks? for \(64, 16\)"),
        ("blk.3.ssm_beta.weight", (4, 64), "'blk.3.ssm_beta.weight' has no part in this architecture"),
        ("blk.0.attn_kv_a_mqa.weight", (80, 64), "'blk.0.attn_kv_a_mqa.weight' has no part"),
    ],
)
def test_tensors_that_do_not_fit_are_named(file: GGUFFile, name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PhaselineError, match=message):
        kimi_linear.build(spec(file), {**file.tensors, name: TensorInfo(name, shape, FORMATS["F32"], 4)})


@pytest.mark.parametrize("shape", [(), (20480,), (1, 320, 64)])
def test_an_embedding_without_rows_and_columns_is_named(file: GGUFFile, shape: tuple[int, ...]) -> None:
    embedding = TensorInfo("token_embd.weight", shape, FORMATS["F32"], 4)
    with pytest.raises(FileFormatError, match=r"'token_embd.weight' has shape \(.*\), not rows and columns"):
        kimi_linear.spec_from(file.metadata, {**file.tensors, embedding.name: embedding})


def test_a_number_is_no_rate_of_one_head(tmp_path: Path) -> None:
    """Folders may hold tensors without axes."""
    with open_gguf(write_kimi(tmp_path / "one.gguf", heads=1)) as file:
        rate = TensorInfo("blk.0.ssm_a", (), FORMATS["F32"], 4)
        with pytest.raises(FileFormatError, match=r"'blk.0.ssm_a' has shape \(\), .* \(1, 1\)"):
            kimi_linear.build(spec(file), {**file.tensors, rate.name: rate})


def test_a_missing_tensor_is_named(file: GGUFFile) -> None:
    for name in ("blk.0.ssm_dt.bias", "blk.4.ssm_a", "blk.3.attn_kv_a_mqa.weight"):
        with pytest.raises(FileFormatError, match=f"tensor '{name}' is missing"):
            kimi_linear.build(spec(file), {key: info for key, info in file.tensors.items() if key != name})


def test_axes_of_length_one_may_stand_before_the_last(file: GGUFFile) -> None:
    tensors = dict(file.tensors)
    for name, shape in {"blk.0.ssm_conv1d_q.weight": (64, 1, 4), "blk.0.ssm_a": (4, 1)}.items():
        tensors[name] = replace(tensors[name], shape=shape)
    assert len(kimi_linear.build(spec(file), tensors).ops) == len(model_program(file)[1].ops)


def test_layers_of_each_kind_have_a_state_group_of_their_own(file: GGUFFile) -> None:
    _, program = model_program(file)
    latent, delta = program.state
    assert latent == PagedLatent(1, 80)
    assert isinstance(delta, Recurrent) and delta.layers == 4
    assert delta.parts == (("state", (4, 16, 16)), ("window", (3, 192)))
    placed = [(op.group, op.layer) for op in program.ops if isinstance(op, LatentAttend | DeltaAttend)]
    assert placed == [(1, 0), (1, 1), (1, 2), (0, 0), (1, 3)]
    assert all(op.rope is None for op in program.ops if isinstance(op, LatentAttend))


def test_only_latent_layers_cost_more_as_the_context_grows(file: GGUFFile) -> None:
    _, program = model_program(file)
    near, far = (step_cost(program, decode_work(context)) for context in (10, 1010))
    assert far.state_bytes - near.state_bytes == 1000 * 80 * 2
    delta = [op for op in program.ops if isinstance(op, DeltaAttend)]
    assert [op.cost(decode_work(10)) for op in delta] == [op.cost(decode_work(1010)) for op in delta]
    assert step_cost(program, prefill_work(64)).flops > 60 * near.flops
