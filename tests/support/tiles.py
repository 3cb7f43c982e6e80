"""A pytest plugin (`-p support.tiles`): the level amx runs here, its instructions emulated (tiles.cpp), and slowly."""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

from phaseline import _native


def _build(folder: str) -> ctypes.CDLL:
    library = Path(folder) / "tiles.so"
    source = Path(__file__).with_suffix(".cpp")
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


with tempfile.TemporaryDirectory() as _folder:
    _library = _build(_folder)
if _library.emulate_tiles() != 0:
    raise RuntimeError("no handler for instructions that the processor lacks")
_native.trust_tiles()
