"""A ringq server as a process, with the files that the kubelet would mount into its pod."""

import base64
import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from cluster import REPOSITORY, Cluster, Failed, wait


def programs() -> None:
    """Fails if something is missing, before a cluster is started for it."""
    clock_library()
    if not binary().exists():
        raise Failed(f"there is no server at {binary()}: run cargo build first, or set RINGQ_BIN")


def binary() -> Path:
    return Path(os.environ.get("RINGQ_BIN") or REPOSITORY / "target/debug/ringq").absolute()


class Server:
    """A server with one file of identities."""

    def __init__(self, cluster: Cluster, name: str, identities: Path):
        self.cluster = cluster
        self.name = f"ringq-{name}"
        self.identities = identities
        self.log = cluster.directory / f"{self.name}.log"
        self.offset = cluster.directory / f"{self.name}.clock"
        self.addresses: dict[str, str] = {}

    def start(self, **variables: str) -> "Server":
        place = self.cluster.directory / self.name
        ready = Path(f"{place}.ready")
        self.cluster.run_as(
            self.name, binary(), "serve", "--identities", str(self.identities), "--data-dir", str(place),
            "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--ready-file", str(ready), **variables,
        )
        wait(f"{self.name} serves", ready.exists)
        self.addresses = json.loads(ready.read_text())
        return self

    def start_with_clock(self) -> "Server":
        """Starts it with a clock that `set_ahead` sets. Its timers go on as they are."""
        self.set_ahead(0)
        return self.start(LD_PRELOAD=str(clock_library()), FAKETIME_TIMESTAMP_FILE=str(self.offset),
                          FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1")

    def set_ahead(self, seconds: float) -> None:
        """Sets the clock to this many seconds ahead of the true time, while the server runs."""
        new = self.offset.with_suffix(".new")
        new.write_text(f"{seconds:+f}\n")
        new.replace(self.offset)

    def call(self, rpc: str, message: dict, token: str) -> tuple[int, dict]:
        """Makes a call by JSON, and returns the status and the answer."""
        request = urllib.request.Request(
            f"http://{self.addresses['http']}/v1/ringq.v1.QueueService/{rpc}", data=json.dumps(message).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def enqueue(self, token: str, topic: str = "shop.orders") -> tuple[int, str]:
        """Enqueues a job by JSON, and returns the status and the message of an error."""
        status, answer = self.call("Enqueue", {"job": {"topic": topic}}, token)
        return status, answer.get("message", "")

    def command(self, token: str, *arguments: str) -> subprocess.CompletedProcess:
        """Runs `ringq`, which calls the server over gRPC."""
        variables = {"RINGQ_SERVER": f"http://{self.addresses['grpc']}", "RINGQ_TOKEN": token}
        return subprocess.run(
            [binary(), *arguments], env=self.cluster.environment | variables, capture_output=True, text=True, timeout=60)

    def logged(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")


def clock_library() -> Path:
    for base in (Path("/usr/lib"), REPOSITORY / ".tools/faketime/usr/lib"):
        for path in base.glob("*/faketime/libfaketimeMT.so.1"):
            return path
    raise Failed("libfaketime is missing: run tests/monitoring/install")


def mount(cluster: Cluster, pod: dict, root: Path) -> None:
    """Writes the Secrets, ConfigMaps and tokens of a pod to where its first container has them, below a directory.

    The kubelet does the same: it asks for tokens that are bound to the pod.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    for one in pod["spec"]["containers"][0]["volumeMounts"]:
        volume = volumes[one["name"]]
        for source in volume.get("projected", {}).get("sources", [volume]):
            for path, content in contents(cluster, pod, source).items():
                place = root / one["mountPath"].lstrip("/") / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)


def contents(cluster: Cluster, pod: dict, source: dict) -> dict[str, bytes]:
    namespace = pod["metadata"]["namespace"]
    if wanted := source.get("serviceAccountToken"):
        return {wanted["path"]: bound_token(cluster, pod, wanted).encode()}
    if "secret" in source:
        name = source["secret"].get("secretName") or source["secret"]["name"]
        data = cluster.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}
    if "configMap" in source:
        data = cluster.get(f"/api/v1/namespaces/{namespace}/configmaps/{source['configMap']['name']}")["data"]
        return {key: value.encode() for key, value in data.items()}
    return {}


def bound_token(cluster: Cluster, pod: dict, wanted: dict) -> str:
    metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    spec = {"boundObjectRef": bound, "expirationSeconds": wanted["expirationSeconds"]}
    if "audience" in wanted:
        spec["audiences"] = [wanted["audience"]]
    path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    with cluster.request("POST", path, body) as answer:
        return json.loads(answer.read())["status"]["token"]
