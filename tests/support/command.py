"""The command line as a user has it: a process of its own."""

import subprocess
import sys
from collections.abc import Callable

COMMAND = (sys.executable, "-m", "phaseline")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]
