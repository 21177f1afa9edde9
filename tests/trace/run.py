#!/usr/bin/env python3
"""Traces jobs through the server to an OpenTelemetry Collector: make trace.

`./install` gets the programs. RINGQ_BIN is the server, default target/debug/ringq. The exit code is 1 if a check failed.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.dont_write_bytecode = True

from checks import contexts, outage, signals, switches, whole  # noqa: E402
from processes import SIGNALS, SOON, Server  # noqa: E402
from receiver import Collector  # noqa: E402
from report import Failed, Report  # noqa: E402

# On one server that sends everything, in this order.
SHARED = {
    "whole": whole.as_children,
    "links": whole.as_links,
    "metadata": contexts.from_metadata,
    "own-context": contexts.own_context_wins,
    "batch": contexts.batch,
    "errors": contexts.errors,
    "unsampled": contexts.unsampled,
    "malformed": contexts.malformed,
    "resource": signals.resource,
    "metrics": signals.metrics,
    "logs": signals.logs,
    "secrets": signals.secrets,
    "away": outage.away,
    "silent": outage.silent,
    "flapping": outage.flapping,
}
# These start servers with other settings.
OTHERS = {
    "ratio": switches.ratio,
    "defaults": switches.defaults,
    "off": switches.off,
    "mistakes": switches.mistakes,
    "ending": outage.ending,
}


class Suite:
    def __init__(self, report: Report, directory: Path, steps: list[str]) -> None:
        self.report = report
        self.directory = directory
        self.steps = steps
        self.collector = Collector(directory)
        self.servers: list[Server] = []

    def start(self, settings: dict[str, str], service: str = "") -> Server:
        """Starts a server that sends to the collector unless `settings` name another endpoint."""
        common = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "3000"}
        name = {"OTEL_SERVICE_NAME": service} if service else {}
        server = Server(self.directory / f"server-{len(self.servers)}", SOON | common | name | settings)
        self.servers.append(server)
        return server

    def run(self) -> None:
        self.collector.start()
        shared = [name for name in SHARED if name in self.steps]
        if shared:
            more = {
                # Fewer spans than the calls make while the collector is away.
                "OTEL_BSP_MAX_QUEUE_SIZE": "256",
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64",
                "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
                "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {signals.EXPORT_TOKEN}",
            }
            server = self.start(SIGNALS | more)
            for name in shared:
                with self._step(name):
                    SHARED[name](self.report, self.collector, server)
        for name in OTHERS:
            if name in self.steps:
                with self._step(name):
                    OTHERS[name](self.report, self.collector, self.start)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        with self.report.step(name):
            yield
        if self.collector.process is None:  # The step failed while it was away.
            self.collector.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
        self.collector.stop()


def main() -> int:
    steps = [*SHARED, *OTHERS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(steps)}; all if none is named")
    chosen = parser.parse_args().steps or steps
    if unknown := set(chosen) - set(steps):
        parser.error(f"no step is called {', '.join(sorted(unknown))}")
    report = Report()
    start = time.monotonic()
    # An exception, so that what was started ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ringq-trace-") as directory:
        suite = Suite(report, Path(directory), chosen)
        try:
            suite.run()
        except Failed as error:
            report.check("the suite reached its end", False, error)
        finally:
            suite.stop()
    report.note(f"{time.monotonic() - start:.1f} s")
    return report.summary()


sys.exit(main())
