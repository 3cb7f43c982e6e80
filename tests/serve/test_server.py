"""The server's process from its start to its exit status."""

import os
import signal
from pathlib import Path

from support.server import Server, alive, eventually, serving


def test_it_says_where_it_listens_and_what_it_serves(server: Server) -> None:
    assert server.first_line.startswith("listening on http://127.0.0.1:")
    assert server.ask("/health").status == 200
    assert server.ask("/ready").json["status"] == "ready"


def test_stopped_it_drains_and_exits_with_zero(tiny: Path) -> None:
    with serving(tiny) as server:
        engine = server.engine_pid
        assert server.stop(signal.SIGTERM) == 0
        assert not alive(engine)
        out, err = server.process.communicate()
        assert "ready: tiny" in out and "pages" in out and err == ""


def test_an_engine_that_dies_is_started_again(tiny: Path) -> None:
    with serving(tiny) as server:
        engine = server.engine_pid
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: not alive(engine))
        server.wait_ready()
        assert server.engine_pid != engine
