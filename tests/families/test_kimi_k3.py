"""The kimi-k3 family: settings and tensors it reads, those it refuses by name, and the program it builds."""

from collections.abc import Iterator
from typing import Any

import pytest

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.families import kimi_k3, model_program
from phaseline.families.kimi_k3 import KimiK3Spec
from phaseline.families.spec import DeltaSpec, LatentSpec, MoeSpec
from phaseline.files.base import TensorInfo
from phaseline.files.gguf import GGUFFile, open_gguf
from phaseline.files.quant import FORMATS
from phaseline.program.cost import decode_work, step_cost
from phaseline.program.ops import Activation, DeltaAttend, Experts, Gate, LatentAttend, Linear, ResidualMix, Router
from phaseline.program.state import PagedLatent, Recurrent
from support.kimi_k3 import write_kimi_k3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    with open_gguf(write_kimi_k3(tmp_path_factory.mktemp("kimi") / "tiny.gguf")) as file:
        yield file


def spec(file: GGUFFile, **changed: Any) -> KimiK3Spec:
    """The spec with settings replaced (`__` for a dot), or left out if None."""
    meta = dict(file.metadata) | {f"kimi-k3.{name.replace('__', '.')}": value for name, value in changed.items()}
    return kimi_k3.spec_from({key: value for key, value in meta.items() if value is not None}, file.tensors)


def test_every_size_is_read(file: GGUFFile) -> None:
    assert spec(file) == KimiK3Spec(
        arch="kimi-k3",
        layers=6,
        width=64,
        ff=96,
        heads=4,
        kv_heads=1,
        head_dim=32,
        vocab=320,
        context=1024,
        norm_eps=pytest.approx(1e-6),
        moe=MoeSpec(Router(8, 3, "sigmoid", renormalise=True, scale=1.5), 32, 64, 1, latent=48),
        latent=LatentSpec(40, 32, 24, 8, 16, 32**-0.5),
        delta=DeltaSpec(4, 16, 4, (True, True, True, False, True, True), lowest=-5.0),
        bank_every=2,
    )


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("attention__head_count_kv", 1, FileFormatError, "must be a list of 6 whole numbers from 0 to 1"),
        ("kda__gate_lower_bound", None, FileFormatError, "kda.gate_lower_bound is missing"),
        ("kda__gate_lower_bound", 5.0, FileFormatError, "kda.gate_lower_bound is 5.0"),
        ("kda__gate_lower_bound", float("nan"), FileFormatError, "kda.gate_lower_bound is nan"),
        ("attn_res__block_size", None, FileFormatError, "attn_res.block_size is missing"),
        ("attn_res__block_size", 0, FileFormatError, "attn_res.block_size is 0; accepted: 1 to"),
        (
            "activation__situ_beta",
            3.0,
            UnsupportedError,
            r"activation.situ_beta = 3.0 is not supported \(supported: 4.0",
        ),
        ("activation__situ_linear_beta", 0.0, UnsupportedError, "activation.situ_linear_beta = 0.0"),
        ("expert_latent_length", -1, FileFormatError, "expert_latent_length is -1"),
        ("nextn_predict_layers", 1, UnsupportedError, "nextn_predict_layers = 1"),
        ("rope__scaling__type", "yarn", UnsupportedError, "rope.scaling.type"),
        ("attention__sliding_window", 128, UnsupportedError, "attention.sliding_window"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    file: GGUFFile, name: str, value: Any, error: type[PhaselineError], message: str
) -> None:
    with pytest.raises(error, match=message):
        spec(file, **{name: value})


def test_more_banked_rows_than_a_mix_takes_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("many") / "tiny.gguf"
    refused = pytest.raises(UnsupportedError, match="a bank of 9 rows is not supported; supported: up to 8")
    with open_gguf(write_kimi_k3(path, layers=9, bank_every=1)) as file, refused:
        model_program(file)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("blk.0.attn_res_score.weight", (32,), r"asks? for \(64,\)"),
        ("blk.3.attn_gate.weight", (32, 64), r"asks? for \(64, 64\)"),
        ("blk.1.ffn_routed_down.weight", (64, 64), r"asks? for \(48, 64\)"),
        ("blk.1.ffn_up_exps.weight", (8, 32, 64), r"asks? for \(8, 32, 48\)"),
        ("blk.1.ssm_g.weight", (16, 64), r"asks? for \(64, 64\)"),
        ("blk.0.attn_gate.weight", (64, 64), "'blk.0.attn_gate.weight' has no part in this architecture"),
        ("blk.0.ffn_routed_up.weight", (64, 48), "'blk.0.ffn_routed_up.weight' has no part"),
    ],
)
def test_tensors_that_do_not_fit_are_named(file: GGUFFile, name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(PhaselineError, match=message):
        kimi_k3.build(spec(file), {**file.tensors, name: TensorInfo(name, shape, FORMATS["F32"], 4)})


def test_a_missing_tensor_is_named(file: GGUFFile) -> None:
    names = ("blk.0.attn_res_score", "output_res_score", "blk.1.ffn_routed_norm", "blk.3.attn_gate", "blk.2.ssm_g")
    for name in names:
        with pytest.raises(FileFormatError, match=f"tensor '{name}.weight' is missing"):
            kimi_k3.build(spec(file), {key: t for key, t in file.tensors.items() if key != f"{name}.weight"})


def test_the_program(file: GGUFFile) -> None:
    """Rows banked by layers 0, 2 and 4 are mixed from then on, by every layer twice and by the head; a row that is
    banked is not added to."""
    _, program = model_program(file)
    assert [len(op.bank) for op in program.ops if isinstance(op, ResidualMix)] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    begins = [
        n
        for op, n in zip(program.ops, program.layers, strict=True)
        if isinstance(op, Linear) and "attn_output" in op.matrices[0].name and op.residual is None
    ]
    assert begins == [0, 2, 4]
    assert (
        sum(isinstance(op, Gate) for op in program.ops) == sum(isinstance(op, LatentAttend) for op in program.ops) == 1
    )
    experts = [op for op in program.ops if isinstance(op, Experts)]
    assert len(experts) == 5 and all(op.activation is Activation.SITU and op.x.width == 48 for op in experts)
    assert all(op.decay.lowest == -5 for op in program.ops if isinstance(op, DeltaAttend))
    latent, delta = program.state
    assert latent == PagedLatent(1, 40) and isinstance(delta, Recurrent) and delta.layers == 5


def test_every_weight_is_priced_but_the_score_of_an_empty_bank(file: GGUFFile) -> None:
    _, program = model_program(file)
    assert set(file.tensors) - set(program.weights()) == {"blk.0.attn_res_score.weight"}
    cost = step_cost(program, decode_work(10))
    routed = 5 * 3 * 3 * 32 * 48 * 4
    assert cost.routed_bytes == routed
    first = file.tensors["blk.0.attn_res_score.weight"].nbytes
    unread = file.tensors["token_embd.weight"].nbytes * 319 / 320 + 5 * 5 * 3 * 32 * 48 * 4 + first
    twice = 5 * 64 * 4  # the norm before router and shared experts
    assert cost.weight_bytes == pytest.approx(sum(t.nbytes for t in file.tensors.values()) - unread + twice)
