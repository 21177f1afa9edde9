"""A server of one case, its log and its failed handshakes."""

import hashlib
import json
import os
import re
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from certificates import Pair

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("RINGQ_BIN") or REPOSITORY / "target/debug/ringq").absolute()
FAILURES = re.compile(r'^ringq_tls_handshake_failures_total\{port="grpc",reason="(\w+)"\} (\d+)$', re.MULTILINE)


class Failed(Exception):
    """A case cannot go on; the text is the reason."""


def environment(**settings: str) -> dict[str, str]:
    """Returns the environment without what configures ringq or a proxy, but for `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RINGQ_")}
    return kept | {"no_proxy": "*"} | settings


def wait_for(what: str, condition: Callable[[], T], seconds: float = 10) -> T:
    """Returns the first true value of `condition`; fails if there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise Failed(f"no {what} in {seconds:g} s")
        time.sleep(0.02)
    return value


class Server:
    """A ringq with one SQLite shard and one identity. `settings` are lines of its file."""

    def __init__(self, directory: Path, token: str, settings: dict[str, Path], probe: Pair) -> None:
        directory.mkdir()
        identities = directory / "identities.toml"
        digest = hashlib.sha256(token.encode()).hexdigest()
        identities.write_text(f'[[identity]]\nname = "client"\ntokens = ["sha256:{digest}"]\nviewer = ["*"]\n')
        config = directory / "ringq.toml"
        settings = settings | {"identities": identities, "data_dir": directory / "data"}
        config.write_text("metrics_open = true\n" + "".join(f'{name} = "{value}"\n' for name, value in settings.items()))
        self._probe = probe if "tls_cert" in settings else None
        self._log_file = directory / "server.log"
        ready = directory / "ready.json"
        with self._log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [BINARY, "serve", "--config", config, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                 "--ready-file", ready],
                env=environment(), stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for("server", lambda: self._is_ready(ready))
        except Failed:
            self.stop()
            raise
        addresses = json.loads(ready.read_text())
        self.port, self._http = (int(addresses[name].rsplit(":", 1)[1]) for name in ("grpc", "http"))

    def _is_ready(self, ready: Path) -> bool:
        if self.process.poll() is not None:
            raise Failed(f"the server ended with {self.process.returncode}:\n{self.log()}")
        return ready.exists() and ready.stat().st_size > 0

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def failures(self) -> dict[str, int]:
        """Returns the failed handshakes of the gRPC port by reason."""
        scheme, context = "http", None
        if self._probe:
            # It reads the metrics of servers whose certificate is wrong on purpose, too.
            scheme, context = "https", ssl._create_unverified_context()
            context.load_cert_chain(self._probe.cert, self._probe.key)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{scheme}://127.0.0.1:{self._http}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {reason: int(count) for reason, count in FAILURES.findall(text) if int(count)}

    def warnings(self) -> list[str]:
        """Returns the lines of the log that are warnings or errors."""
        return [line for line in self.log().splitlines() if " WARN " in line or " ERROR " in line]

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
