"""The builder: what it takes from a file, and the shapes it refuses."""

from collections.abc import Callable, Sequence

import pytest

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.base import TensorInfo
from phaseline.files.quant import FORMATS
from phaseline.program.ir import Builder, Program, Rows, Value
from phaseline.program.ops import Activation, Embed, Linear, RMSNorm, SelectRows, linear, normalise
from phaseline.program.state import PagedKV

X = Value("x", Rows.TOKENS, 32)


def tensor(name: str, *shape: int) -> TensorInfo:
    size = 4
    for length in shape:
        size *= length
    return TensorInfo(name, shape, FORMATS["F32"], size)


def builder(*tensors: TensorInfo) -> Builder:
    return Builder({t.name: t for t in tensors})


def test_a_weight_must_be_there_in_the_shape_asked_for() -> None:
    b = builder(tensor("w", 8, 32))
    assert b.weight("w", 8, 32).shape == (8, 32)
    assert b.has("w") and not b.has("v")
    with pytest.raises(FileFormatError, match="tensor 'v' is missing"):
        b.weight("v", 8, 32)
    for shape in ((32, 8), (8,), (8, 32, 1), (8, 31)):
        with pytest.raises(FileFormatError, match=r"'w' has shape \(8, 32\), .* ask for"):
            b.weight("w", *shape)


def test_what_nobody_used_is_known() -> None:
    b = builder(tensor("b", 4), tensor("a", 4), tensor("c", 4))
    assert b.unused() == ["a", "b", "c"]
    b.weight("b", 4)
    with pytest.raises(FileFormatError):
        b.weight("c", 5)
    assert b.unused() == ["a", "c"]


def test_operations_belong_to_the_layer_they_were_added_in() -> None:
    b = builder()
    w = tensor("w", 32, 32)
    linear(b, X, [w], ["a"])
    for b.layer in range(2):
        linear(b, X, [w], ["a"])
    b.layer = -1
    linear(b, X, [w], ["a"])
    assert b.layers == [-1, 0, 1, -1]
    assert len(b.ops) == 4


def test_linear_makes_a_value_per_output_with_its_rows() -> None:
    b = builder()
    wanted = Value("x", Rows.WANTED, 32)
    outs = linear(b, wanted, [tensor("q", 64, 32), tensor("k", 16, 32)], ("q", "k"))
    assert [(out.name, out.rows, out.width) for out in outs] == [("q", Rows.WANTED, 64), ("k", Rows.WANTED, 16)]
    (gated,) = linear(b, wanted, [tensor("g", 64, 32), tensor("u", 64, 32)], ("h",), gate=Activation.SILU)
    assert gated.width == 64
    assert [op.outputs() for op in b.ops] == [outs, (gated,)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: linear(b, X, [tensor("w", 8, 31)], "y"), r"w of shape \(8, 31\) .* width 32"),
        (lambda b: linear(b, X, [tensor("w", 32)], "y"), r"w of shape \(32,\)"),
        (lambda b: linear(b, X, [tensor("w", 8, 32)], "y", residual=X), "residual needs one output of its own width"),
        (lambda b: linear(b, X, [tensor("w", 32, 32)] * 2, "yz", residual=X), "residual needs one output"),
        (lambda b: linear(b, X, [tensor("w", 8, 32)], "y", gate=Activation.SILU), "gate needs two weights"),
        (lambda b: linear(b, X, [tensor("w", 8, 32), tensor("v", 9, 32)], "y", gate=Activation.SILU), "of one shape"),
        (lambda b: linear(b, X, [tensor("w", 8, 32)] * 2, "yz", gate=Activation.SILU), "one output"),
        (
            lambda b: linear(b, X, [tensor("w", 8, 32)], "y", biases=[tensor("b", 9)]),
            r"\(9,\) is no bias for 8",
        ),
        (lambda b: linear(b, X, [tensor("w", 40, 32)], "yz", widths=(17, 23)), "multiples of 16"),
        (lambda b: linear(b, X, [tensor("w", 40, 32)], "yz", widths=(16, 23)), "cut into parts"),
        (lambda b: [normalise(b, X, RMSNorm(tensor("n", 24), 1e-5), "y")], "n of width 24 does not divide"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make: Callable[[Builder], Sequence[Value]], message: str) -> None:
    b = builder()
    with pytest.raises(UnsupportedError, match=message):
        make(b)
    assert b.ops == []


def test_values_are_themselves_and_not_their_names() -> None:
    assert Value("x", Rows.TOKENS, 4) != Value("x", Rows.TOKENS, 4)
    assert len({Value("x", Rows.TOKENS, 4) for _ in range(3)}) == 3


def test_a_program_names_each_weight_once_and_describes_itself_line_by_line() -> None:
    table, norm = tensor("table", 64, 32), tensor("norm", 32)
    b = builder(table, norm)
    x, last = Value("x", Rows.TOKENS, 32), Value("last", Rows.WANTED, 32)
    b.add(Embed(table, x))
    (y,) = linear(b, x, [tensor("w", 32, 32)], ("y",), norm=RMSNorm(norm, 1e-5), residual=x)
    b.add(SelectRows(y, last))
    (logits,) = linear(b, last, [table], ("logits",), norm=RMSNorm(norm, 1e-5))
    program = Program(b.ops, b.layers, (PagedKV(1, 1, 16),), logits, 64, 128)
    assert list(program.weights()) == ["table", "w", "norm"]
    assert [op.describe() for op in program.ops] == [
        "x = embed(table)",
        "y = x + linear(rms_norm(x), w)",
        "last = wanted_rows(y)",
        "logits = linear(rms_norm(last), table)",
    ]
    assert isinstance(program.ops[1], Linear) and program.ops[1].inputs() == (x, x)
