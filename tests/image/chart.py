"""The pods of the chart, with its own values: each is started as rendered, probed, used and ended."""

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import redis
from buildah import Buildah, Container, Mount
from manifests import Manifests, PodSpec, pods
from network import NAMESPACE, SUFFIX, PodNetwork
from probes import http, probe, probe_until_passed
from report import Failed, Report

JOBS = 1000


class Pod:
    """A running pod."""

    def __init__(self, spec: PodSpec, container: Container, address: str) -> None:
        self.spec, self.container, self.address = spec, container, address

    def start(self) -> None:
        command, arguments = self.spec.container.get("command"), self.spec.container.get("args", [])
        # A command replaces the entry point of the image.
        if self.container.image == redis.IMAGE:
            command = redis.command(command)
        self.container.start(*arguments, entrypoint=command)

    def probe(self, kind: str) -> str:
        return probe(self.spec.container[kind], self.address, self.container)


def check(report: Report, buildah: Buildah, image: str, network: PodNetwork, chart: Path, work: Path) -> None:
    redis.build_image(buildah, work)
    report.note(f"the chart as rendered; Debian's Redis {redis.version()} in place of the image redis:8.2")
    _check_values(report, buildah, image, network, Manifests(chart, NAMESPACE), work, (2, 3))
    report.note("the chart with store: sqlite")
    sqlite = Manifests(chart, NAMESPACE, "--set", "store=sqlite,replicas=1")
    _check_values(report, buildah, image, network, sqlite, work, (1, 0))


def _check_values(report: Report, buildah: Buildah, image: str, network: PodNetwork, manifests: Manifests, work: Path,
                  expected: tuple[int, int]) -> None:
    # The names of an earlier release lead nowhere.
    network.dns.names = {}
    with ExitStack() as stack:
        specs = pods(manifests)
        shards = [_pod(stack, buildah, redis.IMAGE, network, spec, work) for spec in specs if spec.component == "redis"]
        servers = [_pod(stack, buildah, image, network, spec, work) for spec in specs if spec.component == "server"]
        report.equal("servers and Redis shards of the chart", (len(servers), len(shards)), expected)
        # All at once, as in a cluster: a server starts before its shards have a name.
        for pod in [*servers, *shards]:
            pod.start()
        for pod in [*shards, *servers]:
            _become_ready(report, manifests, network, pod)
        _restricted(report, [*shards, *servers])
        _work(report, buildah, image, network, manifests, servers, shards)
        for pod in [*shards, *servers]:
            failures = [f"{kind}: {failure}" for kind in ("livenessProbe", "readinessProbe") if (failure := pod.probe(kind))]
            report.check(f"{pod.spec.name}: liveness and readiness after the work", not failures, "\n".join(failures))
        _restart(report, manifests, servers, shards)
        for pod in [*servers, *shards]:
            _stop(report, pod)


def _pod(stack: ExitStack, buildah: Buildah, image: str, network: PodNetwork, spec: PodSpec, work: Path) -> Pod:
    address = network.add(spec.name)
    mounts = [Mount(network.resolv_conf, "/etc/resolv.conf", read_only=True), *spec.mounts(work / "volumes")]
    if image == redis.IMAGE:
        mounts += redis.system_mounts()
    container = Container(buildah, image, spec.name, user=spec.user, environment=spec.environment(), mounts=mounts,
                          network=network.namespace(spec.name))
    return Pod(spec, stack.enter_context(container), address)


def _become_ready(report: Report, manifests: Manifests, network: PodNetwork, pod: Pod) -> None:
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        failure, seconds = probe_until_passed(pod.spec.container[kind], pod.address, pod.container)
        report.check(f"{pod.spec.name}: {kind} passes, after {seconds:.1f} s", not failure, f"{failure}\n{pod.container.output()}")
    # The endpoints of its Services.
    for service in manifests.services_of(pod.spec.labels):
        network.dns.names.setdefault(f"{service}.{SUFFIX}", []).append(pod.address)


def _restricted(report: Report, running: list[Pod]) -> None:
    for pod in running:
        context = pod.spec.spec["securityContext"] | pod.spec.container["securityContext"]
        declared = (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"], context["capabilities"]["drop"])
        status = Path(f"/proc/{pod.container.pid()}/status").read_text()
        mounts = Path(f"/proc/{pod.container.pid()}/mounts").read_text().splitlines()
        root = next(line.split()[3] for line in mounts if line.split()[1] == "/")
        actual = (root.startswith("ro"), "NoNewPrivs:\t0" in status, ["ALL"] if "CapEff:\t0000000000000000" in status else [])
        report.equal(f"{pod.spec.name}: read-only root, no new privileges, no capability, as declared", actual, declared)


def _work(report: Report, buildah: Buildah, image: str, network: PodNetwork, manifests: Manifests, servers: list[Pod],
          shards: list[Pod]) -> None:
    # The test pod of the chart: `helm test`.
    (test,) = [document for document in manifests.of_kind("Pod")]
    spec = PodSpec(manifests, test["metadata"]["name"], test["metadata"]["labels"], test["spec"], [])
    network.add(spec.name)
    container = Container(buildah, image, spec.name, user=spec.user, environment=spec.environment(),
                          mounts=[Mount(network.resolv_conf, "/etc/resolv.conf", read_only=True)],
                          network=network.namespace(spec.name))
    with container:
        done = container.run(*spec.container["args"])
        report.check("the pod of helm test ends with exit code 0", done.returncode == 0, done)

    first, last = (f"http://{server.address}:7700" for server in (servers[0], servers[-1]))
    ringq = str(servers[0].container.root / "usr/local/bin/ringq")
    done = _run(ringq, "info", "--server", first)
    report.check("without a token a call is refused", done.returncode == 1 and "RINGQ_TOKEN" in done.stderr, done)
    token = manifests.values("Secret", "ringq-identities")["token"].decode()
    start = time.monotonic()
    lines = "".join(f"job {number}\n" for number in range(JOBS))
    done = _run(ringq, "enqueue", "work", "--lines", "-", "--quiet", "--server", first, input=lines, token=token)
    report.check(f"{JOBS} jobs enqueued at one server", done.returncode == 0, done)
    # The image has no shell: the worker is the same binary outside of it.
    done = _run(ringq, "work", "work", "--exec", "cat", "--batch", "50", "--max-jobs", str(JOBS), "--idle-exit", "20s",
                "--quiet", "--server", last, token=token)
    report.check(f"and taken from {'the other one' if len(servers) > 1 else 'it'}, each once, in {time.monotonic() - start:.1f} s",
                 sorted(done.stdout.splitlines()) == sorted(lines.splitlines()), f"{len(done.stdout.splitlines())} {done.stderr}")
    names = [shard.spec.labels["ringq.dev/shard"] for shard in shards] or ["s0"]
    metrics = [http(f"{server.address}:7701", "/metrics")[1] for server in servers]
    up = [name for name in names if f'ringq_shard_up{{shard="{name}"}} 1' in metrics[0]]
    report.equal("metrics: all shards are up", up, names)
    report.check("metrics: each server has done its part", "ringq_jobs_enqueued_total" in metrics[0]
                 and "ringq_jobs_settled_total" in metrics[-1], metrics)


def _restart(report: Report, manifests: Manifests, servers: list[Pod], shards: list[Pod]) -> None:
    """Stops the last pod that has a volume, and starts it on that volume."""
    token = manifests.values("Secret", "ringq-identities")["token"].decode()
    ringq, server = str(servers[0].container.root / "usr/local/bin/ringq"), f"http://{servers[0].address}:7700"
    done = _run(ringq, "enqueue", "kept", "--lines", "-", "--quiet", "--server", server, input="job\n" * 30, token=token)
    lost = [*servers, *shards][-1]
    lost.container.stop(lost.spec.grace)
    if shards:
        time.sleep(2)
        failures = [failure for pod in servers for kind in ("livenessProbe", "readinessProbe") if (failure := pod.probe(kind))]
        report.check("with one shard stopped the servers stay alive and ready", not failures, failures)
    lost.start()
    failure, _ = probe_until_passed(lost.spec.container["readinessProbe"], lost.address, lost.container)
    report.check(f"{lost.spec.name} starts again on its volume", not failure, f"{failure} {lost.container.output()}")
    done = _run(ringq, "work", "kept", "--exec", "cat; echo", "--max-jobs", "30", "--idle-exit", "20s", "--quiet", "--server", server,
                token=token)
    report.equal("and all jobs from before are there", done.stdout.split(), ["job"] * 30)


def _stop(report: Report, pod: Pod) -> None:
    code, seconds = pod.container.stop(pod.spec.grace)
    report.check(f"{pod.spec.name}: SIGTERM ends it with exit code 0 after {seconds:.1f} of {pod.spec.grace} s",
                 code == 0, f"{code} {pod.container.output()}")


def _run(*command: str, input: str = "", token: str = "") -> subprocess.CompletedProcess:
    # The pods are on this machine, but not on its loopback.
    environment = os.environ | {"RINGQ_TOKEN": token, "RINGQ_ALLOW_PLAINTEXT_TOKEN": "true"}
    try:
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=120, env=environment)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command)} did not end within 120 s") from error
