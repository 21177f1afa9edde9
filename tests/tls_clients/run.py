#!/usr/bin/env python3
"""Makes each mistake with TLS by clients in Go, Java and Python, and compares what both sides report: make tls-clients.

`./install` gets the clients, .ci/install-test-tools Python with grpcio. RINGQ_BIN is the server, default
target/debug/ringq. The exit code is 1 if a check failed.
"""

import argparse
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.dont_write_bytecode = True

from cases import CASES, Case, Files, lines_in_docs  # noqa: E402
from server import REPOSITORY, Failed, Server, environment, wait_for  # noqa: E402

TOOLS = REPOSITORY / ".tools"
JAVA_FILES = TOOLS / "tls_clients/java_client"
# Only the start of a JVM costs time here.
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{JAVA_FILES}:{JAVA_FILES}/lib/*"]
CLIENTS = {
    "go": [TOOLS / "tls_clients/go_client"],
    # The TLS of grpc-netty-shaded is BoringSSL, and that of the JDK where this cannot be loaded.
    "java": [*JAVA, "Client"],
    "java-jdk": [*JAVA, "-Dio.grpc.netty.shaded.io.netty.handler.ssl.noOpenSsl=true", "Client"],
    "python": [TOOLS / "venv/bin/python", Path(__file__).parent / "python/client.py"],
}


class Suite:
    def __init__(self, directory: Path, clients: list[str]) -> None:
        self.directory = directory
        self.clients = clients
        self.texts = lines_in_docs()
        self.files = Files(directory)
        self.token = f"rq_{secrets.token_urlsafe(32)}"
        self.passed = 0
        self.failed: list[str] = []

    def run(self) -> None:
        for case in CASES:
            for client in self.clients:
                self._run_one(case, client)

    def _run_one(self, case: Case, client: str) -> None:
        text = case.line or self.texts[case.title][client.removesuffix("-jdk")]
        reason = case.reasons.get(client, case.reason)
        directory = self.directory / f"server-{self.passed + len(self.failed)}"
        try:
            server = Server(directory, self.token, case.settings(self.files), self.files.client)
            try:
                if case.server is Files.short:
                    wait_for("expired certificate", lambda: "a tls certificate in use has expired" in server.log())
                line = self._call(case, client, server, text)
                _check_server(server, reason)
            finally:
                server.stop()
        except Failed as error:
            self.failed.append(f"{case.title}, {client}")
            print(f"tls: FAILED: {case.title}, {client}: {error}", flush=True)
        else:
            self.passed += 1
            print(f"tls: ok: {case.title}, {client}: {line} ({reason or 'no failed handshake'})", flush=True)

    def _call(self, case: Case, client: str, server: Server, text: str) -> str:
        """Runs the client. Returns its line, which must have this part."""
        command = [*CLIENTS[client], *case.flags(self.files), f"{case.host}:{server.port}"]
        token = self.token if case.token_is_known else f"rq_{secrets.token_urlsafe(32)}"
        try:
            done = subprocess.run(
                command, env=environment(RINGQ_TOKEN=token), capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            raise Failed("the client has not ended in 60 s") from None
        line = done.stdout.removesuffix("\n")
        # BoringSSL writes the names of alerts in capitals, the JDK does not.
        if "\n" in line or text.lower() not in line.lower():
            raise Failed(f"not one line with {text!r}:\n{done.stdout}{done.stderr}")
        if (done.returncode == 0) != line.endswith(" bytes"):
            raise Failed(f"exit code {done.returncode} with {line!r}")
        return line


def _check_server(server: Server, reason: str) -> None:
    """Compares the failed handshakes with the reason of the case; each reason is one line of the log."""
    if reason:
        wait_for(f"failed handshake with {reason!r}, only {server.failures()}", lambda: reason in server.failures())
    counted = server.failures()
    # A client may connect again at once, and end before that handshake does.
    unexpected = set(counted) - {reason, "closed"} if reason else set(counted)
    closed = [line for line in server.warnings() if "connection closed: " in line]
    logged = [line for line in closed if f'reason="{reason}"' in line and 'port="grpc"' in line]
    if unexpected or len(logged) != (1 if reason else 0) or len(closed) != len(counted):
        raise Failed(f"the server counted {counted} and not {reason or 'none'}, or did not log it once:\n" + "\n".join(closed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(CLIENTS)}; all if none is named")
    chosen = parser.parse_args().clients or list(CLIENTS)
    if unknown := set(chosen) - set(CLIENTS):
        parser.error(f"no client is called {', '.join(sorted(unknown))}")
    start = time.monotonic()
    # An exception, so that what was started ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ringq-tls-clients-") as directory:
        try:
            suite = Suite(Path(directory), chosen)
        except Failed as error:
            print(f"tls: {error}", file=sys.stderr)
            return 1
        suite.run()
    for title in suite.failed:
        print(f"tls: failed: {title}", file=sys.stderr)
    print(f"tls: {time.monotonic() - start:.1f} s")
    print(f"tls: {suite.passed} passed, {len(suite.failed)} failed")
    return 1 if suite.failed else 0


sys.exit(main())
