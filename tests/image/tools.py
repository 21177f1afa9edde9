"""Installs what the test needs, only where it is missing."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from report import Failed

HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
TARGET = f"{platform.machine()}-unknown-linux-musl"
# A program, and the Debian package that brings it.
PACKAGES = {
    "buildah": "buildah", "musl-gcc": "musl-tools", "redis-server": "redis-server", "redis-cli": "redis-tools",
    "openssl": "openssl", "ip": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux", "readelf": "binutils",
}


def install(root: Path) -> list[str]:
    """Returns what was installed."""
    if os.geteuid():
        raise Failed("containers and network namespaces need root")
    tools = root / ".tools"
    os.environ["PATH"] = f"{tools}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
    installed = []
    missing = sorted({package for program, package in PACKAGES.items() if not shutil.which(program)})
    if not any(Path("/usr/share/ca-certificates/mozilla").glob("*.crt")):
        missing.append("ca-certificates")
    if missing:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing, DEBIAN_FRONTEND="noninteractive")
        installed += missing
    if shutil.which("rustup"):
        if TARGET not in _run("rustup", "target", "list", "--installed").split():
            _run("rustup", "target", "add", TARGET)
            installed.append(TARGET)
    if not shutil.which("grpcurl"):
        _run(str(root / ".ci/install-test-tools"))
        installed.append("grpcurl")
    if not shutil.which("helm"):
        _run("go", "install", HELM, GOBIN=f"{tools}/bin", GOFLAGS="-p=1")
        installed.append("helm")
    try:
        import yaml  # noqa: F401
    except ImportError:
        _run("python3", "-m", "pip", "install", "--quiet", "--target", str(tools / "image-python"), "pyyaml")
        installed.append("pyyaml")
    return installed


def _run(*command: str, **environment: str) -> str:
    try:
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is needed to install {command[-1]}: {error}") from error
    if done.returncode:
        raise Failed(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout
