"""Debian's Redis in place of the image redis:8.2: a root with nothing in it but the /usr of this machine, read-only."""

import shutil
import subprocess
from pathlib import Path

from buildah import Buildah, Mount

IMAGE = "redis-of-this-machine"


def build_image(buildah: Buildah, work: Path) -> None:
    root = work / "redis-root"
    for directory in ("usr", "data", "etc"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    (work / "Redisfile").write_text("FROM scratch\nCOPY . /\nUSER 65532:65532\nWORKDIR /data\nENV PATH=/usr/bin\n")
    buildah.run("build", "--file", str(work / "Redisfile"), "--tag", IMAGE, str(root))


def system_mounts() -> list[Mount]:
    return [Mount(Path("/usr"), "/usr", read_only=True)]


def command(rendered: list[str]) -> list[str]:
    """The rendered command by its path: buildah looks a program up before it mounts /usr."""
    return [shutil.which(rendered[0], path="/usr/bin") or rendered[0], *rendered[1:]]


def version() -> str:
    return subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split()[2]


class HostRedis:
    """A Redis in the network namespace of a pod, for the checks of names and of TLS."""

    def __init__(self, network_namespace: str, directory: Path, *options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [shutil.which("nsenter"), f"--net=/run/netns/{network_namespace}", "redis-server", "--bind", "*", "-::*",
             "--protected-mode", "no", "--save", "", "--dir", str(directory), *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> "HostRedis":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
