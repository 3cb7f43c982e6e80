"""`phaseline pull`: what it shows, and where."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from phaseline.cli.main import main


def test_where_no_terminal_is_there_is_no_bar(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHASELINE_CACHE", str(tmp_path))
    files = partial(SimpleHTTPRequestHandler, directory=str(Path(plain).parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            capfd.readouterr()
            status = main(["pull", f"http://127.0.0.1:{server.server_port}/{Path(plain).name}"])
        finally:
            server.shutdown()
    output = capfd.readouterr()
    told_by_the_server = [line for line in output.err.splitlines() if '"GET ' in line or '"HEAD ' in line]
    assert (status, output.out.count("\n")) == (0, 1)
    assert output.err.splitlines() == told_by_the_server


def test_help_calls_the_model_as_the_others_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pull", "--help"])
    assert "MODEL" in capsys.readouterr().out.splitlines()[0]
