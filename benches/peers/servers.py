"""Servers for one run: on free loopback ports, in an empty directory, ended with their owner."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# Time limit until a server answers, and interval of the checks.
START_S, LOOK_S = 30.0, 0.02


class Broken(Exception):
    """A run that did not do its work."""


@dataclass(frozen=True)
class Server:
    """A program, and the port that it listens on."""

    port: int
    words: list[str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ringq-peers-") as name:
        yield Path(name)


@contextmanager
def running(servers: list[Server], place: Path) -> Iterator[None]:
    """Starts servers one after the other, each when the one before it answers."""
    with ExitStack() as stack:
        for server in servers:
            stack.enter_context(_process(server, place))
        yield


@contextmanager
def _process(server: Server, place: Path) -> Iterator[None]:
    log = place / f"{Path(server.words[0]).name}.log"
    # Where there is setpriv, the kernel ends the server with this program, even if that is killed.
    bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [*bound, *server.words], cwd=place, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
        )
    try:
        _wait(server, child, log)
        yield
    finally:
        child.kill()
        child.wait()


def _wait(server: Server, child: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit and child.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=START_S).close()
            return
        except OSError:
            time.sleep(LOOK_S)
    raise Broken(f"{server.words[0]} does not serve: {log.read_text(errors='replace')[-1000:]}")
