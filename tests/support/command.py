"""The command line as a user has it: a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable

COMMAND = (sys.executable, "-m", "phaseline")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # it hides lost flushes

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]
