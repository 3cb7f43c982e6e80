"""`phaseline explain`: the priced program and what fits."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command import Run
from support.kimi import write_kimi
from support.sparse import write_sparse
from support.tiny import write_llama

MATRICES = 2 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128)  # elements, of both layers of the tiny model
HEAD = 320 * 64


@pytest.fixture
def explain(phaseline: Run, tiny: str) -> Any:
    def make(*args: str) -> dict[str, Any]:
        done = phaseline("explain", tiny, *args, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return dict(json.loads(done.stdout))

    return make


def test_every_operation_is_priced_in_both_phases(explain: Any) -> None:
    found = explain("--chunk", "100", "--context", "300", "--batch", "4")
    for phase, rows, wanted, starts in (("prefill", 100, 1, [(200, 100)]), ("decode", 4, 4, [(300, 1)] * 4)):
        ops = [op for op in found["ops"] if op["phase"] == phase]
        total = found["phases"][phase]
        for key in ("flops", "weight_bytes", "state_bytes"):
            assert total[key] == pytest.approx(sum(op[key] for op in ops))
        assert total["rows"] == rows and ops[0]["rows"] == rows and ops[-1]["rows"] == wanted
        products = sum(op["flops"] for op in ops if "linear" in op["op"])
        assert products == 2 * (rows * MATRICES + wanted * HEAD)
        # each segment reads its context and writes its own rows: two layers, two heads of 16, keys and values, bf16
        assert total["state_bytes"] == 2 * 2 * 2 * 16 * 2 * sum(start + 2 * n for start, n in starts)
        moved = total["weight_bytes"] + total["state_bytes"]
        assert total["flops_per_byte"] == pytest.approx(total["flops"] / moved)


def test_a_wider_state_moves_more(explain: Any) -> None:
    narrow, wide = (explain("--kv-type", kind)["phases"]["decode"]["state_bytes"] for kind in ("bf16", "f32"))
    assert wide == 2 * narrow


def test_alike_layers_are_folded(phaseline: Run, tiny: str) -> None:
    folded, every = (phaseline("explain", tiny, "--memory", "1GiB", *ops) for ops in ((), ("--ops",)))
    assert "layers 0-1, each" in folded.stdout and "blk.*.attn_q.weight" in folded.stdout
    assert " layer 1 " in every.stdout and "blk.1.attn_q.weight" in every.stdout
    assert folded.stdout.splitlines()[-2:] == every.stdout.splitlines()[-2:]
    assert "FLOP/byte" in folded.stdout and "fits" in folded.stdout


def test_layers_of_other_formats_are_shown_apart(phaseline: Run, tmp_path: Path) -> None:
    mixed = write_llama(tmp_path / "mixed.gguf", layers=4, formats={"blk.1.ffn_down": "Q8_0", "blk.2.ffn_down": "Q8_0"})
    shown = phaseline("explain", str(mixed)).stdout
    heads = [line.strip() for line in shown.splitlines() if line.startswith(" layer")]
    assert heads == ["layer 0", "layers 1-2, each", "layer 3"] * 2  # for prefill and for decode


def test_state_is_told_group_by_group(phaseline: Run, tiny: str) -> None:
    shown = phaseline("explain", tiny, "--memory", "1GiB").stdout
    assert "state of 2 layers, every position: 0.2 KiB a position, 0.1 MiB a stream" in shown


def test_what_fits(explain: Any) -> None:
    fit = explain("--context", "1000", "--batch", "3", "--memory", "260MiB")["fit"]
    room = 260 * 2**20 - fit["weights"]
    assert fit["memory"] == 260 * 2**20 and fit["fits"] is True
    (state,) = fit["state"]
    assert state["bytes_per_stream"] == fit["bytes_per_stream"] == 1024 * state["bytes_per_position"]  # whole pages
    assert 3 <= fit["most_streams"] <= room / fit["bytes_per_stream"]
    assert fit["longest_context"] * state["bytes_per_position"] <= room
    many = explain("--context", "1000", "--memory", "260MiB", "--batch", str(fit["most_streams"] + 1))["fit"]
    assert many == fit | {"fits": False}


def test_what_does_not_fit_says_why(phaseline: Run, explain: Any, tiny: str) -> None:
    fit = explain("--memory", "1MiB")["fit"]
    assert fit["fits"] is False and "weights" in fit["reason"]
    shown = phaseline("explain", tiny, "--memory", "1MiB")
    assert shown.returncode == 0 and "does not fit: " in shown.stdout


def test_a_sparse_model_tells_shared_bytes_from_routed(phaseline: Run, tmp_path: Path, tiny: str) -> None:
    path = str(write_sparse(tmp_path / "sparse.gguf", "olmoe", experts=8, active=3))
    found = json.loads(phaseline("explain", path, "--json").stdout)
    for phase, rows in found["phases"].items():
        assert 0 < rows["routed_bytes"] < rows["weight_bytes"]
        assert rows["routed_bytes"] == sum(op["routed_bytes"] for op in found["ops"] if op["phase"] == phase)
    shown = " ".join(phaseline("explain", path).stdout.split())
    assert "decode of 1 row:" in shown and "(3.0 of 8 expected under uniform routing)" in shown
    assert "experts" not in phaseline("explain", tiny).stdout


def test_a_model_that_carries_a_state_tells_it_apart(phaseline: Run, tmp_path: Path) -> None:
    """Latents grow with the context; what delta attention carries does not, and costs as much at any context."""
    path = str(write_kimi(tmp_path / "kimi.gguf"))
    near, far = (
        json.loads(phaseline("explain", path, "--context", context, "--json").stdout) for context in ("100", "1000")
    )
    assert near["fit"]["fits"] and far["fit"]["fits"]
    latents, carried = far["fit"]["state"]
    assert [(group["layers"], group["reaches_back"]) for group in (latents, carried)] == [(1, None), (4, 0)]
    assert latents["bytes_per_stream"] == 1024 * latents["bytes_per_position"]
    assert carried == near["fit"]["state"][1]
    assert carried["bytes_per_stream"] == 2 * 4 * 4 * (4 * 16 * 16 + 3 * 192)  # one snapshot read and one written
    delta = [[op for op in found["ops"] if "delta_attend" in op["op"]] for found in (near, far)]
    decode = [[op for op in ops if op["phase"] == "decode"] for ops in delta]
    assert len(decode[0]) == 4 and decode[0] == decode[1]
    shown = phaseline("explain", path, "--memory", "1GiB").stdout
    assert "state of 4 layers, carried on: 0.0 MiB a stream" in shown


def test_a_model_that_carries_a_state_is_priced_on_paper(phaseline: Run, tmp_path: Path) -> None:
    path = str(write_kimi(tmp_path / "kimi.gguf"))
    done = phaseline("explain", path, "--hardware", "h200", "--context", "1000", "--json")
    kv = json.loads(done.stdout)["kv"]
    assert kv["bytes_per_position"] == 160 and kv["fixed_bytes"] == 4 * 4 * (4 * 16 * 16 + 3 * 192)
    assert kv["bytes_per_stream"] == 1000 * kv["bytes_per_position"] + kv["fixed_bytes"]
