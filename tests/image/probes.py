"""Probes as the kubelet runs them."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from buildah import Container


def grpc_health(address: str, service: str, timeout: float = 5) -> str:
    """The status that the gRPC health service reports, or the error."""
    done = subprocess.run(
        ["grpcurl", "-plaintext", "-import-path", str(Path(__file__).parent), "-proto", "health.proto",
         "-max-time", str(timeout), "-d", json.dumps({"service": service}), address, "grpc.health.v1.Health/Check"],
        capture_output=True, text=True,
    )
    return json.loads(done.stdout)["status"] if done.returncode == 0 else done.stderr.strip()


def http(address: str, path: str, token: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def probe(declared: dict, address: str, container: Container) -> str:
    """Runs a declared probe once. Returns an empty text, or what failed."""
    timeout = declared.get("timeoutSeconds", 1)
    match declared:
        case {"grpc": {"port": port, "service": service}}:
            status = grpc_health(f"{address}:{port}", service, timeout)
            return "" if status == "SERVING" else status
        case {"exec": {"command": command}}:
            try:
                done = container.execute(*command, timeout=timeout)
            except subprocess.TimeoutExpired:
                return f"no end within {timeout} s"
            return "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    return f"this kind of probe is not known here: {declared}"


def probe_until_passed(declared: dict, address: str, container: Container) -> tuple[str, float]:
    """Repeats a probe as declared. Returns the last failure, empty if it passed, and the seconds."""
    start = time.monotonic()
    failure = ""
    for _ in range(declared.get("failureThreshold", 3)):
        failure = probe(declared, address, container)
        if not failure or container.pid() is None:
            break
        time.sleep(declared.get("periodSeconds", 10))
    return failure, time.monotonic() - start
