"""`phaseline pull`: what it shows, and where."""

import pytest

from phaseline.cli.main import main
from support.command import Run


def test_where_no_terminal_is_there_is_no_bar(phaseline: Run) -> None:
    done = phaseline("pull", "http://127.0.0.1:9/m.gguf")  # nobody answers there
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_help_calls_the_model_as_the_others_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pull", "--help"])
    assert "MODEL" in capsys.readouterr().out.splitlines()[0]
