"""A Kubernetes control plane of processes on loopback, and the commands and requests that the checks send to it.

Pods are scheduled to three nodes in three zones that kwok stands in for: no container is started. A pod becomes Ready
half a second after it was scheduled, unless the tag of its image is `broken`.
"""

import ctypes
import json
import secrets
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = REPOSITORY / ".tools/kube"
ZONES = ["a", "b", "c"]
VOLUMES = 60
# Claim `iss` of the tokens of ServiceAccounts, as kubeadm sets it.
ISSUER = "https://kubernetes.default.svc.cluster.local"


class Failed(Exception):
    """A check that does not hold, with the output that shows it."""


class Cluster:
    def __init__(self, directory: Path, helm: Path):
        self.directory = directory
        self.programs: list[tuple[str, subprocess.Popen]] = []
        self.ports = free_ports(3)
        self.token = secrets.token_hex(16)
        self.url = f"https://127.0.0.1:{self.ports[2]}"
        self.kubeconfig = directory / "kubeconfig"
        # That of the API server, as pods have it at /var/run/secrets/kubernetes.io/serviceaccount/ca.crt.
        self.authority = directory / "ca.crt"
        self.helm_program = helm
        # Everything that kubectl and helm keep is in the directory.
        self.environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
            "KUBECONFIG": str(self.kubeconfig),
            "TMPDIR": str(directory),
        }

    # ---- Start and stop

    def start(self) -> None:
        self.write_files()
        etcd, peer, _ = self.ports
        self.run(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        self.start_api_server("account", "account")
        self.run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.directory}/account.key",
            f"--root-ca-file={self.authority}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--secure-port=0",
            "--horizontal-pod-autoscaler-sync-period=2s",
        )
        self.run("kube-scheduler", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        self.run(
            "kwok",
            f"--kubeconfig={self.kubeconfig}",
            f"--config={self.directory}/stages.yaml",
            "--manage-all-nodes",
            "--cidr=10.244.0.0/16",
            "--node-lease-duration-seconds=40",
        )
        self.kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, nodes() + classes() + volumes())))
        wait("the nodes are ready", lambda: all(map(ready, self.items("/api/v1/nodes"))), 60)

    def start_api_server(self, signing: str, *published: str) -> None:
        """Starts the API server, which signs tokens of ServiceAccounts with one key and accepts those of all published."""
        self.run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.ports[0]}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports[2]}",
            f"--tls-cert-file={self.directory}/apiserver.crt",
            f"--tls-private-key-file={self.directory}/apiserver.key",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-signing-key-file={self.directory}/{signing}.key",
            *(f"--service-account-key-file={self.directory}/{key}.key" for key in published),
            "--service-cluster-ip-range=10.96.0.0/16",
            # The endpoint of the service `kubernetes` cannot be a loopback address.
            "--endpoint-reconciler-type=none",
        )
        wait("the API server is ready", lambda: self.get("/readyz") == "ok", 60)

    def write_files(self) -> None:
        # Tokens of ServiceAccounts are signed with one of these: RSA, as clusters begin, or ECDSA.
        self.openssl("genrsa", "-out", "account.key", "2048")
        for key in ("second", "third"):
            self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{key}.key")
        # Certificates with the names that those of kubeadm have.
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
                     "-days", "3650", "-subj", "/CN=kubernetes", "-addext", "subjectAltName=DNS:kubernetes",
                     "-addext", "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign")
        self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "apiserver.key", "-out", "apiserver.csr",
                     "-subj", "/CN=kube-apiserver")
        (self.directory / "apiserver.ext").write_text(EXTENSIONS)
        self.openssl("x509", "-req", "-in", "apiserver.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                     "-out", "apiserver.crt", "-days", "365", "-extfile", "apiserver.ext")
        (self.directory / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        (self.directory / "stages.yaml").write_text(STAGES)
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {
                "server": self.url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
            "current-context": "it",
        }))

    def openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, cwd=self.directory)
        if done.returncode:
            raise Failed(f"openssl {' '.join(arguments)}\n{done.stderr}")

    def run(self, program: str, *arguments: str) -> None:
        self.run_as(program, PROGRAMS / program, *arguments)

    def run_as(self, name: str, program: Path, *arguments: str, **variables: str) -> subprocess.Popen:
        """Starts a program; its log has this name, and so has its end in `ended`."""
        log = (self.directory / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [program, *arguments],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory, env=self.environment | variables,
            start_new_session=True, preexec_fn=die_with_parent,
        )
        self.programs.append((name, process))
        return process

    def end(self, name: str) -> None:
        """Kills one program: an API server that is asked to end waits for a minute for the watches of the controllers."""
        process = next(process for each, process in self.programs if each == name)
        process.kill()
        process.wait()
        self.programs = [one for one in self.programs if one[1] is not process]

    def stop(self) -> None:
        """Kills what was started: nothing of it is kept."""
        for _, process in reversed(self.programs):
            process.kill()
            process.wait()

    def ended(self) -> str:
        """The end of the log of each program that has ended by itself."""
        texts = []
        for name, process in self.programs:
            if process.poll() is not None:
                lines = (self.directory / f"{name}.log").read_text(errors="replace").splitlines()
                texts.append(f"{name} has ended with {process.returncode}:\n" + "\n".join(lines[-20:]))
        return "\n".join(texts)

    # ---- Commands

    def command(self, program: Path, *arguments: str, stdin: str = "", refused: str | None = None) -> str:
        """Runs a command and returns its output. With `refused` it must fail, with this text in its errors."""
        done = subprocess.run(
            [program, *arguments], input=stdin, text=True, timeout=300, capture_output=True, env=self.environment,
            cwd=self.directory,
        )
        text = f"$ {program.name} {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        if refused is not None:
            if done.returncode == 0 or refused not in done.stderr:
                raise Failed(f"it was to be refused with `{refused}`; exit code {done.returncode}\n{text}")
            return done.stdout + done.stderr
        if done.returncode:
            raise Failed(f"exit code {done.returncode}\n{text}")
        # Pod Security, deprecated versions, unknown and doubled fields.
        if "warning" in done.stderr.lower():
            raise Failed(f"a warning\n{text}")
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", refused: str | None = None) -> str:
        return self.command(PROGRAMS / "kubectl", *arguments, stdin=stdin, refused=refused)

    def helm(self, *arguments: str, refused: str | None = None) -> str:
        return self.command(self.helm_program, *arguments, refused=refused)

    def helm_major(self) -> int:
        return int(self.helm("version", "--template", "{{.Version}}").lstrip("v").split(".")[0])

    # ---- Requests

    def request(self, method: str, path: str, body: object = None, timeout: float = 30, token: str | None = None):
        """Sends a request of the administrator, or with another token; an empty one is none."""
        token = self.token if token is None else token
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        context = ssl.create_default_context(cafile=self.authority)
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode(), headers=headers)
        return urllib.request.urlopen(request, timeout=timeout, context=context)

    def get(self, path: str):
        """The object, or the text of a path that has no JSON, or None if there is no such object."""
        for _ in range(50):
            try:
                with self.request("GET", path) as answer:
                    text = answer.read().decode()
                return json.loads(text) if text.startswith("{") else text
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                # The API server prepares the storage of a new kind.
                if error.code != 429:
                    raise
            time.sleep(0.1)
        raise Failed(f"GET {path} is answered 429 for 5 s")

    def items(self, path: str) -> list[dict]:
        return self.get(path)["items"]

    def evict(self, namespace: str, pod: str) -> int:
        """Asks for the eviction of a pod, as a node drain does, and returns the status: 429 if a budget refuses it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        try:
            with self.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


class Watch:
    """The states that an object passes through, from that at the start of a block to that at its end."""

    def __init__(self, cluster: Cluster, path: str, name: str):
        self.states: list[dict] = []
        self.answer = cluster.request("GET", f"{path}?watch=1&fieldSelector=metadata.name%3D{name}", timeout=300)
        self.thread = threading.Thread(target=self.read, daemon=True)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        # The last state arrives shortly after the command that waited for it.
        time.sleep(0.5)

    def read(self) -> None:
        try:
            for line in self.answer:
                self.states.append(json.loads(line)["object"])
        except (OSError, ValueError):
            pass  # The API server ends.

    def least(self, field: str) -> int:
        """The least value of a number in the status; one that is absent is 0."""
        if not self.states:
            raise Failed("the watch has seen no state")
        return min(state.get("status", {}).get(field, 0) for state in self.states)


def wait(what: str, condition, seconds: float = 120):
    """Waits for a condition and returns its value; a condition that cannot be read yet does not hold."""
    end = time.monotonic() + seconds
    while True:
        error = None
        try:
            if value := condition():
                return value
        except (OSError, KeyError, TypeError) as problem:
            error = problem
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}" + (f": {error!r}" if error else ""))
        time.sleep(0.1)


def ready(thing: dict) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in thing.get("status", {}).get("conditions", []))


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def die_with_parent() -> None:
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def nodes() -> list[dict]:
    return [{
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{zone}", "labels": {
            "kubernetes.io/hostname": f"node-{zone}",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "topology.kubernetes.io/zone": zone,
        }},
        "status": {"allocatable": SIZE, "capacity": SIZE},
    } for zone in ZONES]


def classes() -> list[dict]:
    def storage(name: str, default: str) -> dict:
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default}},
            "provisioner": "kubernetes.io/no-provisioner",
        }

    priority = {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "queue"}, "value": 1000}
    return [storage("standard", "true"), storage("fast", "false"), priority]


def volumes() -> list[dict]:
    return [{
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"volume-{number}"},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "standard" if number % 4 else "fast",
            "hostPath": {"path": f"/nowhere/{number}"},
        },
    } for number in range(VOLUMES)]


EXTENSIONS = """
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth
subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
DNS:kubernetes.default.svc.cluster.local,IP:10.96.0.1,IP:127.0.0.1
"""

SIZE = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}

STAGES = """
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.podIP, operator: DoesNotExist}
      - {key: '.spec.containers.[].image | test(":broken$")', operator: NotIn, values: ["true"]}
      - {key: .spec.restartPolicy, operator: NotIn, values: [Never]}
  delay: {durationMilliseconds: 500}
  next:
    statusTemplate: |
      {{ $now := Now }}
      conditions:
      {{ range list "Initialized" "Ready" "ContainersReady" }}
      - {type: {{ . }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
      {{ end }}
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: true
        started: true
        restartCount: 0
        state: {running: {startedAt: {{ $now | Quote }}}}
      {{ end }}
      hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
      podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
      phase: Running
      startTime: {{ $now | Quote }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-complete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.podIP, operator: DoesNotExist}
      - {key: .spec.restartPolicy, operator: In, values: [Never]}
  next:
    statusTemplate: |
      podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
      phase: Succeeded
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: Exists}
  delay: {durationMilliseconds: 200}
  next:
    finalizers: {empty: true}
    delete: true
"""
