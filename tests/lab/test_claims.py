"""Claims: a limit is named where its ceiling explains the time and no intervention speaks against it."""

import pytest

from phaseline.bounds import Bounds, bounds
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from phaseline.lab.claims import LIMITS, Intervention, Timed, judge
from phaseline.machine import Ceilings
from phaseline.program.cost import decode_work, prefill_work
from phaseline.program.ir import Program
from phaseline.program.ops import Cost, Work
from support.tiny import write_llama


def timed(
    seconds: float, compute: float = 0.0, bandwidth: float = 0.0, launch: float = 0.0, noise: float = 0.0
) -> Timed:
    return Timed(seconds, Bounds(Cost(), compute, bandwidth, launch), noise)


DECODE = timed(1.0, compute=0.05, bandwidth=0.7, launch=0.01)
TWICE = Intervention("twice the streams", DECODE, timed(1.1, compute=0.1, bandwidth=0.75, launch=0.01))
WIDER = Intervention("weights as q8_0", DECODE, timed(1.6, compute=0.05, bandwidth=1.2, launch=0.01))


def test_bandwidth_is_told_by_rows_and_by_bytes() -> None:
    claim = judge(DECODE, [TWICE, WIDER])
    assert (claim.limit, claim.inferred, claim.fraction) == ("bandwidth", False, pytest.approx(0.7))
    assert claim.label == "bandwidth"
    text = " / ".join(claim.evidence)
    assert "arithmetic 5%, reading 70%, launching 1%" in text
    assert "twice the streams: time x1.10; arithmetic x2.00, reading x1.07, launching x1.00" in text
    assert "weights as q8_0: time x1.60; arithmetic x1.00, reading x1.71" in text
    assert claim.record() == {
        "limit": "bandwidth",
        "fraction": 0.7,
        "inferred": False,
        "evidence": list(claim.evidence),
    }


def test_without_interventions_a_ceiling_alone_infers() -> None:
    claim = judge(DECODE)
    assert (claim.limit, claim.inferred, claim.label) == ("bandwidth", True, "bandwidth (inferred)")
    assert claim.evidence[-1] == "nothing that was changed tells bandwidth from compute"


def test_an_intervention_that_tells_nothing_apart_leaves_it_inferred() -> None:
    longer = Intervention("twice the context", DECODE, timed(2.0, compute=0.1, bandwidth=1.4, launch=0.01))
    assert judge(DECODE, [longer]).inferred
    assert not judge(DECODE, [longer, TWICE]).inferred


def test_bytes_that_change_nothing_contradict_bandwidth() -> None:
    deaf = Intervention("weights as q8_0", DECODE, timed(1.0, compute=0.05, bandwidth=1.2, launch=0.01))
    claim = judge(DECODE, [TWICE, deaf])
    assert (claim.limit, claim.inferred) == ("unknown", False)
    assert claim.evidence[-1] == "bandwidth comes nearest, but is contradicted by: weights as q8_0"


def test_noise_widens_what_counts_as_agreement() -> None:
    deaf = Intervention("weights as q8_0", DECODE, timed(1.0, bandwidth=1.2, noise=0.3))
    assert judge(DECODE, [deaf]).limit == "bandwidth"


def test_noise_is_told() -> None:
    told = "its time varies by 30% between rounds"
    assert told in " ".join(judge(timed(1.0, bandwidth=0.4, noise=0.3)).evidence)
    assert told not in " ".join(judge(timed(1.0, bandwidth=0.4, noise=0.02)).evidence)


def test_compute_needs_time_linear_in_rows() -> None:
    prefill = timed(1.0, compute=0.6, bandwidth=0.05, launch=0.001)
    linear = Intervention("half the rows", prefill, timed(0.5, compute=0.3, bandwidth=0.04, launch=0.001))
    flat = Intervention("half the rows", prefill, timed(0.9, compute=0.3, bandwidth=0.04, launch=0.001))
    assert (judge(prefill, [linear]).limit, judge(prefill, [linear]).inferred) == ("compute", False)
    assert judge(prefill, [flat]).limit == "unknown"


def test_other_arithmetic_says_nothing_of_compute() -> None:
    prefill = timed(1.0, compute=0.6, bandwidth=0.05)
    slower = Intervention("weights as bf16", prefill, timed(2.5, compute=0.9, bandwidth=0.15), arithmetic=False)
    assert slower.expected("compute") is None and not slower.contradicts("compute")
    assert judge(prefill, [slower]).limit == "compute"
    assert "other arithmetic" in slower.describe()


def test_launch_is_flat_in_rows_and_bytes_and_near_the_empty_plan() -> None:
    tiny = timed(1.0, compute=0.1, bandwidth=0.1, launch=0.8)
    rows = Intervention("twice the rows", tiny, timed(1.02, compute=0.2, bandwidth=0.11, launch=0.8))
    size = Intervention("weights as bf16", tiny, timed(1.03, compute=0.1, bandwidth=0.32, launch=0.8))
    assert (judge(tiny, [rows, size]).limit, judge(tiny, [rows, size]).inferred) == ("launch", False)
    assert judge(tiny, [rows]).inferred, "bytes were not changed"


def test_no_resource_that_explains_half_is_named() -> None:
    claim = judge(timed(1.0, compute=0.4, bandwidth=0.49, launch=0.1), [])
    assert (claim.limit, claim.fraction) == ("unknown", pytest.approx(0.49))
    assert claim.evidence[-1] == "no resource explains 50% of it"


def test_work_without_any_bound_is_unknown() -> None:
    claim = judge(timed(1.0), [Intervention("twice the rows", timed(1.0), timed(2.0))])
    assert (claim.limit, claim.fraction) == ("unknown", 0)
    assert claim.evidence[1] == "twice the rows: time x2.00; no bound would change"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Weights of two bytes, so that the critical batch is peak over bandwidth; attention is next to nothing."""
    path = tmp_path_factory.mktemp("claims") / "tiny.gguf"
    shape = {"width": 512, "ff": 2048, "heads": 8, "kv_heads": 8, "vocab": 320, "context": 4096, "layers": 1}
    with open_gguf(write_llama(path, format="BF16", **shape)) as file:
        return model_program(file)[1]


@pytest.mark.parametrize(("rows", "limit"), [(8, "bandwidth"), (1024, "compute")])
def test_eight_rows_and_a_thousand_on_a_machine_of_critical_batch_240(program: Program, rows: int, limit: str) -> None:
    """A machine that reaches its roofline: each step takes the longer of its bounds."""
    machine = Ceilings(float_flops=2.4e11, quant_flops=2.4e11, read=((1, 1e9),), empty_plan=1e-9, empty_eager=1e-9)

    def run(work: Work, ceilings: Ceilings = machine) -> Timed:
        least = bounds(program, [work], ceilings)
        return Timed(max(least.compute, least.bandwidth), least)

    work = decode_work(16, streams=rows) if rows < 100 else prefill_work(rows)
    other = decode_work(16, streams=2 * rows) if rows < 100 else prefill_work(rows // 2)
    claim = judge(run(work), [Intervention("other rows", run(work), run(other))])
    assert (claim.limit, claim.inferred, claim.fraction) == (limit, False, pytest.approx(1.0))
    assert set(LIMITS) == {"launch", "bandwidth", "compute"}
