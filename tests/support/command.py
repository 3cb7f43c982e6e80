"""The command line as a user has it: a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

COMMAND = (sys.executable, "-m", "phaseline")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # it hides lost flushes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


def run(*args: str, input: str | bytes = "", **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end; `options` go to `subprocess.run`."""
    raw = input if isinstance(input, bytes) else input.encode()
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    done = subprocess.run([*COMMAND, *args], input=raw, env=ENVIRONMENT, timeout=60, **options)
    texts = ((text or b"").decode() for text in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)
