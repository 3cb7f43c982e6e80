"""Which room may import which: the design's arrows, read from the source. No source file grows past one sitting."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "phaseline"
MAX_LINES = 400

# room: the rooms it may import, beside itself. A room is a folder or a module right below the package;
# "door" is the package itself (its __init__), from which every room may take __version__.
ALLOWED = {
    "errors": set[str](),
    "files": {"errors"},
    "program": {"errors", "files"},
    "families": {"errors", "files", "program"},
    "state": {"errors", "program"},
    "execute": {"errors", "files", "program", "state", "_native"},
    "_native": set[str](),  # the compiled extension
    "machine": {"errors", "execute", "_native"},
    "engine": {"errors", "files", "program", "families", "state", "execute"},
    "bounds": {"program", "machine"},
    "lab": {"errors", "program", "machine", "bounds"},
    "serve": {"errors", "files", "program", "execute", "machine", "bounds", "engine"},
    "door": {"errors", "files", "engine"},
    "cli": {"door", "errors", "files", "program", "families", "state", "execute", "machine", "engine", "serve", "lab"},
    "__main__": {"cli"},
}
# single modules that may import more than their room
EXCEPTIONS = {
    "lab/systems/phaseline.py": {"engine", "execute"},
    "engine/sampler.py": {"_native"},  # sampling is native too, and belongs to the engine
    "serve/door/json_body.py": {"_native"},  # which counts what is in a body while other threads run
    "serve/process/messages.py": {"_native"},  # which spells what is plain of a report, beside steps that fill caches
    "cli/parser.py": {"_native"},  # --version names the instruction sets without loading numpy
}


def imported(path: PurePosixPath, source: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that the module at `path` (relative to the package) takes from the package."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("phaseline", *path.parent.parts)[: len(path.parts) + 1 - node.level] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "phaseline")


def room_of(path: PurePosixPath) -> str:
    first = path.parts[0]
    return "door" if first == "__init__.py" else first.removesuffix(".py")


def violations(path: PurePosixPath, source: str) -> list[str]:
    """Every import in `source` that the arrows forbid, and the room itself if it is unknown."""
    room = room_of(path)
    if room not in ALLOWED:
        return [f"{path}: room {room!r} has no row in the table"]
    allowed = {room} | ALLOWED[room] | EXCEPTIONS.get(str(path), set())
    found = []
    for line, name in imported(path, source):
        if name == "phaseline.__version__":
            continue
        target = [*name.split("."), "door"][1]
        known = target in ALLOWED or (PACKAGE / target).exists() or (PACKAGE / f"{target}.py").exists()
        if (target if known else "door") not in allowed:
            found.append(f"{path}:{line}: {room} may not import {name}")
    return found


def test_every_import_follows_the_arrows() -> None:
    sources = sorted(PACKAGE.rglob("*.py"))
    assert sources
    found = [
        violation
        for file in sources
        for violation in violations(PurePosixPath(file.relative_to(PACKAGE).as_posix()), file.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_rooms_of_the_server_stand_on_each_other() -> None:
    below = {"process": ("door", "live", "server"), "live": ("door", "server"), "door": ("server",)}
    for room, above in below.items():
        for file in (PACKAGE / "serve" / room).rglob("*.py"):
            path = PurePosixPath(file.relative_to(PACKAGE).as_posix())
            names = [name for _, name in imported(path, file.read_text())]
            assert not [n for n in names if n.startswith(tuple(f"phaseline.serve.{a}" for a in above))], path


def test_the_arrows_make_no_circle() -> None:
    assert set(TopologicalSorter(ALLOWED).static_order()) == set(ALLOWED)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("files/gguf.py", "from phaseline.program.ir import Program"),
        ("files/gguf.py", "import phaseline.engine"),
        ("files/gguf.py", "from ..program import ir"),
        ("files/gguf.py", "from .. import program"),
        ("files/gguf.py", "from phaseline import program"),
        ("files/gguf.py", "from phaseline import load"),
        ("files/gguf.py", "import phaseline"),
        ("program/ops/linear.py", "from ...execute import native"),
        ("state/pool.py", "def late():\n    from phaseline.execute import native"),
        ("execute/native.py", "import numpy, phaseline.engine.engine as engine"),
        ("machine.py", "from phaseline.program import ir"),
        ("machine.py", "from .program import ir"),
        ("engine/engine.py", "from phaseline.lab import metrics"),
        ("lab/drive.py", "from phaseline.engine.types import Request"),
        ("lab/systems/truth.py", "from phaseline.engine.types import Request"),
        ("lab/metrics.py", "import importlib\nimportlib.import_module('phaseline.engine')"),
        ("__init__.py", "from phaseline.lab import goodput"),
        ("__init__.py", "from .cli import main"),
        ("attic/old.py", ""),
    ],
)
def test_a_forbidden_import_is_caught(path: str, source: str) -> None:
    assert len(violations(PurePosixPath(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("errors.py", "import json, phaselines"),
        (
            "files/gguf.py",
            "from phaseline.errors import FileFormatError\nfrom . import quant\nfrom .quant import FORMATS",
        ),
        ("program/ops/linear.py", "from phaseline.files.base import TensorInfo\nfrom ..ir import Program"),
        ("execute/native.py", "from phaseline import _native\nfrom phaseline._native import Plan"),
        ("lab/records.py", "from phaseline import __version__"),
        ("lab/systems/phaseline.py", "from phaseline.engine.engine import Engine"),
        ("__init__.py", "from phaseline.engine.types import Request\nfrom .engine import types"),
        ("cli/main.py", "from phaseline import load\nfrom phaseline.lab import metrics\nfrom phaseline import machine"),
    ],
)
def test_an_allowed_import_passes(path: str, source: str) -> None:
    assert violations(PurePosixPath(path), source) == []


def test_no_source_file_is_too_long() -> None:
    files = [
        file
        for folder in (REPOSITORY / "src", REPOSITORY / "tests", REPOSITORY / "benchmarks")
        for file in folder.rglob("*")
        if file.suffix in {".py", ".cpp", ".hpp", ".h", ".inc"}
    ]
    assert files
    lengths = {str(file.relative_to(REPOSITORY)): len(file.read_text().splitlines()) for file in files}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}
