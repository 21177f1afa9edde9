"""The rendered chart, and what the kubelet makes of a pod of it: command, environment, files, probes."""

import base64
import os
import re
import subprocess
from pathlib import Path

import yaml

from buildah import Mount
from report import Failed


class Manifests:
    def __init__(self, chart: Path, namespace: str, *options: str) -> None:
        command = ["helm", "template", "ringq", str(chart), "--namespace", namespace, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{' '.join(command)}: {done.stderr}")
        self.documents = [document for document in yaml.safe_load_all(done.stdout) if document]

    def of_kind(self, kind: str) -> list[dict]:
        return [document for document in self.documents if document["kind"] == kind]

    def named(self, kind: str, name: str) -> dict:
        for document in self.of_kind(kind):
            if document["metadata"]["name"] == name:
                return document
        raise Failed(f"the chart renders no {kind} {name}")

    def values(self, kind: str, name: str) -> dict[str, bytes]:
        """The entries of a ConfigMap or a Secret."""
        document = self.named(kind, name)
        values = {key: text.encode() for key, text in (document.get("stringData") or {}).items()}
        for key, text in (document.get("data") or {}).items():
            values[key] = base64.b64decode(text) if kind == "Secret" else text.encode()
        return values

    def services_of(self, labels: dict[str, str]) -> list[str]:
        """The names of the Services that select a pod with these labels."""
        return [
            service["metadata"]["name"]
            for service in self.of_kind("Service")
            if service["spec"]["selector"].items() <= labels.items()
        ]


class PodSpec:
    """One pod with one container."""

    def __init__(self, manifests: Manifests, name: str, labels: dict[str, str], spec: dict, claims: list[str]) -> None:
        self.manifests, self.name, self.labels, self.spec = manifests, name, labels, spec
        self.claims = claims
        (self.container,) = spec["containers"]
        self.grace = spec.get("terminationGracePeriodSeconds", 30)

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def user(self) -> str:
        context = self.spec["securityContext"] | self.container["securityContext"]
        return f"{context['runAsUser']}:{context['runAsGroup']}"

    def environment(self) -> dict[str, str]:
        environment: dict[str, str] = {}
        for entry in self.container.get("env", []):
            environment[entry["name"]] = self._value(entry, environment)
        return environment

    def _value(self, entry: dict, earlier: dict[str, str]) -> str:
        if "value" in entry:
            expand = lambda match: earlier.get(match[1], match[0])  # noqa: E731
            return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", expand, entry["value"])
        match entry["valueFrom"]:
            case {"fieldRef": {"fieldPath": "metadata.name"}}:
                return self.name
            case {"secretKeyRef": {"name": name, "key": key}}:
                return self.manifests.values("Secret", name)[key].decode()
            case {"configMapKeyRef": {"name": name, "key": key}}:
                return self.manifests.values("ConfigMap", name)[key].decode()
        raise Failed(f"{self.name}: this source of {entry['name']} is not known here: {entry['valueFrom']}")

    def mounts(self, directory: Path) -> list[Mount]:
        """Writes the volumes below a directory, owned as the kubelet does, and returns their mounts."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        mounts = []
        for mount in self.container.get("volumeMounts", []):
            source = directory / self.name / mount["name"]
            source.mkdir(parents=True, exist_ok=True)
            self._fill(source, volumes.get(mount["name"], {}), mount["name"])
            mounts.append(Mount(source, mount["mountPath"], mount.get("readOnly", False)))
        return mounts

    def _fill(self, directory: Path, volume: dict, name: str) -> None:
        group = self.spec["securityContext"]["fsGroup"]
        match volume:
            case {"configMap": {"name": source}}:
                values = self.manifests.values("ConfigMap", source)
            case {"secret": {"secretName": source}}:
                values = self.manifests.values("Secret", source)
            case {"emptyDir": _}:
                values = {}
            case {} if name in self.claims:
                values = {}
            case _:
                raise Failed(f"{self.name}: this volume is not known here: {volume}")
        os.chown(directory, 0, group)
        directory.chmod(0o755 if values else 0o2775)
        for key, content in values.items():
            (directory / key).write_bytes(content)
            (directory / key).chmod(0o644)


def pods(manifests: Manifests) -> list[PodSpec]:
    """The pods of all workloads, by the names that a cluster gives."""
    found = []
    for workload in [*manifests.of_kind("Deployment"), *manifests.of_kind("StatefulSet")]:
        spec, name = workload["spec"], workload["metadata"]["name"]
        template = spec["template"]
        claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
        for number in range(spec["replicas"]):
            pod = f"{name}-{number}" if workload["kind"] == "StatefulSet" else f"{name}-6d5f9c7b48-{number:05}"
            found.append(PodSpec(manifests, pod, template["metadata"]["labels"], template["spec"], claims))
    return found
