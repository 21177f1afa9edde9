"""Images and containers by buildah, with a storage of their own: no daemon, no kernel module, no OCI runtime.

A container runs with the seccomp filter of buildah, as the user of the image without any capability, without a way to
new privileges, on a read-only root, and in the network namespace that it is given. Mounts are those of its command.
Not separated from this machine are process ids, and no limit of memory or cpu is set.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from report import Failed, wait_until

# Places that buildah mounts over in each container; a read-only root must have them already.
MOUNT_FILES = ["etc/hosts", "etc/hostname", "etc/resolv.conf"]
MOUNT_DIRECTORIES = ["dev", "proc", "run", "sys"]
# buildah's default is less than a Redis needs; more than this machine allows is refused.
FILES_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


class Buildah:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "storage.conf"
        config.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/storage"\nrunroot = "{directory}/run"\n'
        )
        self.environment = os.environ | {"CONTAINERS_STORAGE_CONF": str(config), "BUILDAH_ISOLATION": "chroot"}

    def run(self, *arguments: str) -> str:
        done = subprocess.run(["buildah", *arguments], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"buildah {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()

    def image(self, name: str) -> dict:
        """The description of an image: the configuration, the layers, the digest."""
        return json.loads(self.run("inspect", "--type", "image", name))


@dataclass
class Mount:
    source: Path
    target: str
    read_only: bool = False


@dataclass
class Container:
    """A container of an image, with a read-only root. The process is that of `start`."""

    buildah: Buildah
    image: str
    name: str
    user: str = "65532:65532"
    environment: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    # Name of a network namespace; none: that of this machine.
    network: str | None = None
    process: subprocess.Popen | None = None

    def __enter__(self) -> "Container":
        # Its own resolv.conf would be mounted over ours, or not: it sorts equally deep mounts in any order.
        dns = ["--dns", "none"] if any(mount.target == "/etc/resolv.conf" for mount in self.mounts) else []
        self.id = self.buildah.run("from", "--pull-never", *dns, "--cap-drop", "ALL", "--ulimit", f"nofile={FILES_MAX}:{FILES_MAX}",
                                   self.image)
        self.root = Path(self.buildah.run("mount", self.id))
        self.config = json.loads(self.buildah.run("inspect", self.id))["OCIv1"]["config"]
        self.log = self.root.parent / f"{self.name}.log"
        for target in MOUNT_FILES:
            self._place(target, is_directory=False)
        for target in MOUNT_DIRECTORIES:
            self._place(target, is_directory=True)
        for mount in self.mounts:
            self._place(mount.target.lstrip("/"), mount.source.is_dir())
        # Like a container runtime: the root is read-only, what is mounted over it is not.
        subprocess.run(["mount", "--bind", self.root, self.root], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", self.root], check=True)
        # buildah makes and removes /run/.containerenv; only root can write here.
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", self.root / "run"], check=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process and self.process.poll() is None:
            if pid := self.pid():
                os.kill(pid, signal.SIGKILL)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        subprocess.run(["umount", "--recursive", self.root], check=True)
        self.buildah.run("rm", self.id)

    def _place(self, target: str, is_directory: bool) -> None:
        path = self.root / target
        if is_directory:
            path.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def command(self, arguments: list[str], entrypoint: list[str] | None = None) -> list[str]:
        """The command on this machine that runs the entry point, by default that of the image, with arguments."""
        entrypoint = self.config.get("Entrypoint", []) if entrypoint is None else entrypoint
        command = ["nsenter", f"--net=/run/netns/{self.network}"] if self.network else []
        command += ["setpriv", "--no-new-privs", "buildah", "run", "--user", self.user, "--no-hosts"]
        for name, value in self.environment.items():
            command += ["--env", f"{name}={value}"]
        for mount in self.mounts:
            command += ["--volume", f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"]
        return [*command, self.id, "--", *entrypoint, *arguments]

    def run(self, *arguments: str, entrypoint: list[str] | None = None, timeout: float = 60) -> subprocess.CompletedProcess:
        """Runs a process to its end."""
        return subprocess.run(
            self.command(list(arguments), entrypoint),
            env=self.buildah.environment, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        )

    def start(self, *arguments: str, entrypoint: list[str] | None = None) -> None:
        """Starts the main process; its output is in `log`."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(list(arguments), entrypoint),
                env=self.buildah.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if not wait_until(lambda: self.pid() is not None or self.process.poll() is not None, 20, 0.02):
            raise Failed(f"{self.name} did not start: {self.output()}")

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def pid(self) -> int | None:
        """The process id of the main process: the first one below buildah that runs a program of the container."""
        pid = self.process.pid
        try:
            while children := _children(pid):
                pid = int(children[0])
                # buildah-chroot-exec, the last process of buildah's own, has the user already.
                command = Path(f"/proc/{pid}/cmdline").read_text()
                status = Path(f"/proc/{pid}/status").read_text()
                if f"\nUid:\t{self.user.split(':')[0]}\t" in status and command and not command.startswith("buildah"):
                    return pid
        except OSError:
            pass
        return None

    def execute(self, *command: str, timeout: float = 60, environment: dict[str, str] = {}) -> subprocess.CompletedProcess:
        """Runs a command inside the running container, as `kubectl exec` and probes do."""
        pid = self.pid()
        if pid is None:
            return subprocess.CompletedProcess(command, 255, "", f"{self.name} does not run: {self.output()}")
        user, group = self.user.split(":")
        own = dict(line.split("=", 1) for line in self.config.get("Env", []))
        return subprocess.run(
            [shutil.which("nsenter"), f"--target={pid}", "--mount", "--net", "--root", "--wd", f"--setuid={user}", f"--setgid={group}",
             "--", *command],
            env=own | self.environment | environment, capture_output=True, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def stop(self, grace: float) -> tuple[int | None, float]:
        """Sends SIGTERM to the main process. Returns the exit code, none if the grace was too short, and the seconds."""
        start = time.monotonic()
        os.kill(self.pid(), signal.SIGTERM)
        try:
            code = self.process.wait(grace)
        except subprocess.TimeoutExpired:
            code = None
        return code, time.monotonic() - start


def _children(pid: int) -> list[str]:
    """The processes that any thread of a process has started."""
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
