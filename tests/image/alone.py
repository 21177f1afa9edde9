"""One server of the image, with a file on /data: what it may do, what it answers, how it ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

from buildah import Buildah, Container, Mount
from network import PodNetwork
from probes import grpc_health, http
from report import Report, wait_until

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ["/bin/sh", "sh", "/bin/bash", "/busybox/sh"]
TOKEN = "rq_the-token-of-this-test"


def check(report: Report, buildah: Buildah, image: str, network: PodNetwork, work: Path) -> None:
    data = work / "data"
    data.mkdir()
    os.chown(data, 65532, 65532)
    address = network.add("alone")
    _open(report, buildah, image, network)
    # The identities of deploy/compose.yaml.
    mounts = [Mount(data, "/data"), Mount(ROOT / "deploy/identities.toml", "/etc/ringq/identities.toml", read_only=True)]
    environment = {"RINGQ_IDENTITIES": "/etc/ringq/identities.toml", "RINGQ_TOKEN": TOKEN}
    with Container(buildah, image, "alone", environment=environment, mounts=mounts, network=network.namespace("alone")) as server:
        done = server.run("--version")
        report.check("ringq --version", done.returncode == 0 and done.stdout.startswith("ringq "), done)
        done = server.run(entrypoint=["/usr/local/bin/ringq", "work", "t", "--exec", "true"])
        report.check(f"ringq work --exec without a shell fails with a clear error: {done.stderr.splitlines()[0]}",
                     done.returncode not in (0, 126, 127) and "cannot run /bin/sh" in done.stderr, done)
        server.start("serve")
        ready = wait_until(lambda: grpc_health(f"{address}:7700", "ringq.v1.QueueService") == "SERVING", 10)
        report.check("the image serves with its own command, user and variables", ready, server.output())
        _restricted(report, server)
        _answers(report, server, address)
        _inside(report, server)
        code, seconds = server.stop(20)
        report.check(f"SIGTERM ends it with exit code 0, after {seconds:.1f} s", code == 0, f"{code} {server.output()}")
        report.check("the data is on the volume", (data / "ringq.db").exists(), list(data.iterdir()))
    _first_process(report, buildah, image)


def _open(report: Report, buildah: Buildah, image: str, network: PodNetwork) -> None:
    """Without identities, what the image starts by itself could be used by anyone who reaches it."""
    with Container(buildah, image, "open", network=network.namespace("alone")) as server:
        done = server.run("serve")
        named = all(part in done.stderr for part in ("listen: 0.0.0.0:7700", "http_listen: 0.0.0.0:7701", "identities", "insecure"))
        report.check("without identities it does not start, and names both ways to change that", done.returncode == 2 and named, done)


def _restricted(report: Report, server: Container) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{server.pid()}/status").read_text().splitlines() if ":\t" in line)
    report.equal("user and group ids", (status["Uid"].split(), status["Gid"].split()), (["65532"] * 4, ["65532"] * 4))
    report.equal("no capability", [status[name].strip("0") for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")], [""] * 4)
    report.equal("no new privileges, and a seccomp filter", (status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))
    read_only = os.statvfs(f"/proc/{server.pid()}/root").f_flag & os.ST_RDONLY
    report.check("the root is read-only", bool(read_only))
    written = _writable(server)
    report.equal("it can write nothing but /data and, as in every pod, /dev/shm", written, ["/data", "/dev/shm"])
    for shell in SHELLS:
        done = server.execute(shell, "-c", "true")
        report.check(f"there is no {shell}", done.returncode == 127 and "No such file" in done.stderr, done)


def _writable(server: Container) -> list[str]:
    """The directories in which the user of the container can make a file, and the files that it can open for writing;
    through the mounts of the container, by the kernel's own answer."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        root = f"/proc/{server.pid()}/root"
        os.setgroups([])
        os.setresgid(65532, 65532, 65532)
        os.setresuid(65532, 65532, 65532)
        for directory, subdirectories, files in os.walk(root):
            if directory == root:
                subdirectories[:] = [name for name in subdirectories if name not in ("proc", "sys")]
            # Devices are no files: /dev/null is there to be written to.
            names = [] if directory.startswith(f"{root}/dev") else [name for name in files if "/data" not in directory]
            for path in [f"{directory}/.probe", *(f"{directory}/{name}" for name in names)]:
                try:
                    os.close(os.open(path, os.O_WRONLY | (os.O_CREAT if path.endswith("/.probe") else 0)))
                    shown = path.removesuffix("/.probe").removeprefix(root) or "/"
                    os.write(writer, f"{shown}\n".encode())
                    if path.endswith("/.probe"):
                        os.unlink(path)
                except OSError:
                    pass
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        written = sorted(lines.read().split())
    os.waitpid(child, 0)
    return written


def _answers(report: Report, server: Container, address: str) -> None:
    for service in ("", "ringq.v1.QueueService"):
        report.equal(f"gRPC health of {service!r}", grpc_health(f"{address}:7700", service), "SERVING")
    for path, part in (("/healthz", ""), ("/readyz", ""), ("/metrics", "ringq_build_info")):
        status, body = http(f"{address}:7701", path, TOKEN if path == "/metrics" else None)
        report.check(f"{path}: {status}", status == 200 and part in body, body)
    status, body = http(f"{address}:7701", "/metrics")
    report.check(f"/metrics without a token: {status}", status == 401 and "ringq_build_info" not in body, body)


def _inside(report: Report, server: Container) -> None:
    done = server.execute("ringq", "info")
    report.check("kubectl exec … ringq info: found by PATH, and answered with the token of the container", done.returncode == 0, done)
    done = server.execute("ringq", "info", environment={"RINGQ_TOKEN": ""})
    report.check("and without a token refused", done.returncode == 1 and "RINGQ_TOKEN" in done.stderr, done)
    done = server.execute("ringq", "enqueue", "t", "--quiet", "hello")
    report.check("kubectl exec … ringq enqueue", done.returncode == 0, done)


def _first_process(report: Report, buildah: Buildah, image: str) -> None:
    """As process 1 of a process id namespace, on a root without /proc, /dev and /etc/resolv.conf."""
    container = buildah.run("from", "--pull-never", image)
    root = Path(buildah.run("mount", container))
    ready = root / "data/ready.json"
    # The volume is the data directory of the root itself; the rest is read-only.
    script = (
        f"mount --bind {root} {root} && mount --bind {root}/data {root}/data && mount -o remount,bind,ro {root} && "
        f"exec chroot --userspec=65532:65532 --groups=65532 {root} /usr/local/bin/ringq serve "
        "--data-dir /data --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --ready-file /data/ready.json"
    )
    server = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount", "sh", "-c", script],
        env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    try:
        started = wait_until(ready.exists, 10)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        if started and children:
            status = Path(f"/proc/{children[0]}/status").read_text()
            is_first = "NSpid:\t" + children[0] + "\t1\n" in status
            start = time.monotonic()
            os.kill(int(children[0]), signal.SIGTERM)
            output, _ = server.communicate(timeout=20)
            report.check(f"as process 1, without /proc, /dev and resolv.conf, it serves, and SIGTERM ends it after "
                         f"{time.monotonic() - start:.1f} s", is_first and server.returncode == 0, output)
        else:
            server.kill()
            report.check("as process 1, without /proc, /dev and resolv.conf, it serves", False, server.communicate()[0])
    finally:
        if server.poll() is None:
            server.kill()
        buildah.run("rm", container)
