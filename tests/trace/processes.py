"""The server, the producer and the worker as processes."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

from report import Failed, wait_for

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = REPOSITORY / ".tools/trace"
EXAMPLE = REPOSITORY / "examples/tracing"

# The setting that is stronger than the variables of OpenTelemetry.
OFF = {"RINGQ_OTLP": "none"}
# Metrics and logs beside traces.
SIGNALS = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_LOGS_EXPORTER": "otlp"}
# Spans, logs and metrics are sent soon after they are made.
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}

_ports = iter(range(20000 + os.getpid() * 7 % 9000, 32000))


def free_address() -> str:
    """Returns an address that no process listens at, below the ports of outgoing connections."""
    for port in _ports:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return f"127.0.0.1:{port}"
            except OSError:
                pass
    raise Failed("no port is free")


def end(process: subprocess.Popen | None, seconds: float = 15) -> None:
    """Asks a process to end, also a suspended one, and waits for that; kills it and fails if it does not."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failed(f"{process.args[0]} has not ended {seconds:g} s after SIGTERM") from None


def environment(settings: dict[str, str]) -> dict[str, str]:
    """Returns the environment without what configures ringq or OpenTelemetry, but for `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGQ_", "OTEL_"))}
    return kept | settings


class Server:
    """A ringq with one SQLite shard."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        directory.mkdir()
        self.log_file = directory / "server.log"
        ready = directory / "ready.json"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [binary(), "serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                 "--data-dir", directory / "data", "--ready-file", ready],
                env=environment(settings), stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for("server", lambda: self._is_ready(ready))
        except Failed:
            end(self.process)
            raise
        addresses = json.loads(ready.read_text())
        self.address = addresses["grpc"].removeprefix("http://")
        self.http = addresses["http"].removeprefix("http://")

    def _is_ready(self, ready: Path) -> bool:
        if self.process.poll() is not None:
            raise Failed(f"the server ended with {self.process.returncode}:\n{self.log()}")
        return ready.exists() and ready.stat().st_size > 0

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def stop(self, seconds: float = 15) -> None:
        end(self.process, seconds)


def binary() -> Path:
    return Path(os.environ.get("RINGQ_BIN", REPOSITORY / "target/debug/ringq")).absolute()


def produce(server: Server, topic: str, text: str, settings: dict[str, str]) -> str:
    """Runs the producer of the example. Returns the id of its job."""
    settings = {"PYTHONPATH": str(TOOLS / "stubs"), "RINGQ_SERVER": server.address, "OTEL_SERVICE_NAME": "producer"} | settings
    return _run([TOOLS / "venv/bin/python", "-B", EXAMPLE / "producer.py", topic, text], settings).strip()


def work(server: Server, topic: str, *flags: str, settings: dict[str, str]) -> None:
    """Runs the worker of the example for two deliveries: it fails at the first attempt of a job."""
    command = [TOOLS / "worker", "-server", server.address, "-deliveries", "2", *flags, topic]
    _run(command, {"OTEL_SERVICE_NAME": "worker"} | settings)


def _run(command: list, settings: dict[str, str]) -> str:
    try:
        done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0].name} has not ended in {error.timeout} s:\n{error.stderr}") from None
    if done.returncode != 0:
        raise Failed(f"{command[0].name} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
