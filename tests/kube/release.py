"""A Helm release in a namespace of its own, and what it has put there."""

import base64
import json

from cluster import REPOSITORY, Cluster, Failed, Watch, ready, wait

CHART = REPOSITORY / "deploy/chart"
NAME = "ringq"
# The Secret with the identity and the token that the chart makes.
TOKEN = "ringq-identities"
ENDED = ("--wait", "--timeout", "60s")
ALL_REVISIONS = ("--history-max", "0")

GROUPS = {
    "/api/v1": ["pods", "services", "secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"],
    "/apis/apps/v1": ["deployments", "statefulsets", "replicasets"],
    "/apis/autoscaling/v2": ["horizontalpodautoscalers"],
    "/apis/discovery.k8s.io/v1": ["endpointslices"],
    "/apis/monitoring.coreos.com/v1": ["servicemonitors", "prometheusrules"],
    "/apis/networking.k8s.io/v1": ["networkpolicies"],
    "/apis/policy/v1": ["poddisruptionbudgets"],
    "/apis/rbac.authorization.k8s.io/v1": ["roles", "rolebindings"],
}
# What each namespace has.
EVERYWHERE = {"configmaps/kube-root-ca.crt", "serviceaccounts/default"}
# What others write: controllers of the cluster, and Helm's own records.
NOT_OURS = {"events", "endpoints", "endpointslices", "controllerrevisions", "replicasets", "pods", "leases"}

CLAIMS = "persistentvolumeclaims/"


class Namespace:
    """A namespace in which Pod Security refuses, and warns of, what is not `restricted`."""

    def __init__(self, cluster: Cluster, name: str):
        self.cluster = cluster
        self.name = name

    def create(self) -> None:
        modes = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": modes}})
        # Commands may ask for rights of it at once.
        wait("the namespace has its account", lambda: self.get("serviceaccounts", "default"))

    def apply(self, *objects: dict) -> None:
        self.cluster.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def secret(self, name: str, **data: str) -> None:
        # Keys of Secrets have dots; those of Python have not.
        data = {key.replace("_", "."): value for key, value in data.items()}
        self.apply({"apiVersion": "v1", "kind": "Secret", "stringData": data,
                    "metadata": {"name": name, "namespace": self.name}})

    def path(self, resource: str) -> str:
        group = next(group for group, resources in GROUPS.items() if resource in resources)
        return f"{group}/namespaces/{self.name}/{resource}"

    def items(self, resource: str, **labels: str) -> list[dict]:
        """The objects of a kind with these labels; a label without a prefix is one of app.kubernetes.io."""
        chosen = ",".join(f"app.kubernetes.io/{key}={value}" for key, value in labels.items())
        return self.cluster.items(f"{self.path(resource)}?labelSelector={chosen}")

    def get(self, resource: str, name: str = NAME) -> dict | None:
        return self.cluster.get(f"{self.path(resource)}/{name}")

    def status(self, resource: str, name: str = NAME) -> dict:
        return (self.get(resource, name) or {}).get("status", {})

    def watch(self, resource: str, name: str = NAME) -> Watch:
        return Watch(self.cluster, self.path(resource), name)

    def names(self, resource: str, **labels: str) -> set[str]:
        return {one["metadata"]["name"] for one in self.items(resource, **labels)}

    def pods(self, component: str) -> list[dict]:
        """The pods of a component that are not about to end."""
        pods = self.items("pods", component=component)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def running(self) -> set[str]:
        """All pods and ReplicaSets, after the controllers have seen the newest templates."""
        def observed() -> bool:
            sets = self.items("deployments") + self.items("statefulsets")
            return all(one["status"].get("observedGeneration") == one["metadata"]["generation"] for one in sets)

        wait("the controllers have seen all templates", observed)
        return {one["metadata"]["uid"] for resource in ("replicasets", "pods") for one in self.items(resource)}

    def identities(self, component: str) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods(component)}

    def wait_ready(self, component: str, number: int) -> None:
        def all_ready() -> bool:
            every, staying = self.items("pods", component=component), self.pods(component)
            return len(every) == len(staying) == number and all(map(ready, staying))

        wait(f"{number} pods of {component} are ready in {self.name}", all_ready, 60)

    def secret_value(self, name: str, key: str) -> str:
        return base64.b64decode(self.get("secrets", name)["data"][key]).decode()

    def kept_secrets(self) -> set[str]:
        """The Secrets that the chart made and an uninstall leaves."""
        made = self.items("secrets", instance=NAME)
        return {one["metadata"]["name"] for one in made if stays(f"secrets/{one['metadata']['name']}", one)}

    def everything(self) -> dict[str, dict]:
        """All objects of all kinds, but not what each namespace has, nor events."""
        found = {}
        for base in self.bases():
            for resource in self.cluster.get(base)["resources"]:
                if not resource["namespaced"] or "list" not in resource["verbs"] or resource["name"] == "events":
                    continue
                for one in self.cluster.items(f"{base}/namespaces/{self.name}/{resource['name']}"):
                    found[f"{resource['name']}/{one['metadata']['name']}"] = one
        return {key: one for key, one in found.items() if key not in EVERYWHERE}

    def bases(self) -> list[str]:
        groups = self.cluster.get("/apis")["groups"]
        return ["/api/v1"] + [f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups]

    def settled(self) -> dict[str, dict]:
        """The objects of a release without what controllers write into them and beside them."""
        objects = {}
        for key, one in self.everything().items():
            resource = key.split("/")[0]
            if resource in NOT_OURS or key.startswith(CLAIMS) or one.get("type") == "helm.sh/release.v1":
                continue
            kept = ("name", "labels", "annotations")
            metadata = {name: one["metadata"].get(name) for name in kept}
            (metadata["annotations"] or {}).pop("deployment.kubernetes.io/revision", None)
            if not metadata["annotations"]:
                metadata["annotations"] = None
            rest = {name: value for name, value in one.items() if name not in ("metadata", "status")}
            objects[key] = {"metadata": metadata, **rest}
        return objects


class Release(Namespace):
    # Objects that the checks made before the release.
    mine: set[str] = set()

    def install(self, *arguments: str, refused: str | None = None) -> str:
        return self.cluster.helm("install", NAME, str(CHART), "-n", self.name, *ENDED, *arguments, refused=refused)

    def upgrade(self, *arguments: str, refused: str | None = None) -> str:
        """To the defaults and the values given, not to those of the revision before."""
        more = ("--reset-values", *ALL_REVISIONS, *ENDED)
        return self.cluster.helm("upgrade", NAME, str(CHART), "-n", self.name, *more, *arguments, refused=refused)

    def rollback(self, revision: int) -> None:
        self.cluster.helm("rollback", NAME, str(revision), "-n", self.name, *ALL_REVISIONS, *ENDED)

    def uninstall(self) -> set[str]:
        """Removes the release and returns the names of what is to stay, volume claims and Secrets, when all else is gone."""
        self.cluster.helm("uninstall", NAME, "-n", self.name, *ENDED)

        def others() -> list[str]:
            return sorted(key for key, one in self.everything().items() if key not in self.mine and not stays(key, one))

        try:
            wait("all else is gone", lambda: not others())
        except Failed:
            raise Failed(f"uninstall leaves {others()}") from None
        # A claim that has an owner is about to go, too.
        return {one["metadata"]["name"] for key, one in self.everything().items()
                if key not in self.mine and not one["metadata"].keys() & {"ownerReferences", "deletionTimestamp"}}

    def dropped(self) -> list[str]:
        """Fields of the chart that the API server has dropped or changed. A tool that compares both would never be done."""
        manifest = self.cluster.helm("get", "manifest", NAME, "-n", self.name)
        text = self.cluster.kubectl("create", "--dry-run=client", "-n", self.name, "-o", "json", "-f", "-", stdin=manifest)
        found, decoder = [], json.JSONDecoder()
        while text := text.strip():
            one, end = decoder.raw_decode(text)
            text = text[end:]
            kind, name = one.pop("kind"), one["metadata"]["name"]
            one["metadata"] = {key: one["metadata"].get(key, {}) for key in ("labels", "annotations")}
            del one["apiVersion"]
            resource = f"{kind.lower()}s".replace("ys", "ies")
            found += differing(f"{kind} {name}", one, self.get(resource, name))
        return found


def stays(key: str, one: dict) -> bool:
    """Returns whether an uninstall leaves an object: volumes, and the password and the token that the chart made."""
    policy = (one["metadata"].get("annotations") or {}).get("helm.sh/resource-policy")
    return key.startswith(CLAIMS) or (key.startswith("secrets/") and policy == "keep")


def differing(path: str, wanted: object, stored: object) -> list[str]:
    """The fields of an object that are not, or not the same, in another one that may have more."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return [text for key, value in wanted.items() if value or key not in ("labels", "annotations")
                for text in differing(f"{path}.{key}", value, stored.get(key))]
    if isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        return [text for index, (one, other) in enumerate(zip(wanted, stored))
                for text in differing(f"{path}.{index}", one, other)]
    return [] if wanted == stored else [f"{path}: {stored} instead of {wanted}"]


def ok(text: str) -> None:
    print(f"ok {text}", flush=True)


def check(holds: bool, text: str, *shown: object) -> None:
    """Prints a line for a check that holds, and fails with the values for one that does not."""
    if not holds:
        raise Failed(f"{text}\n" + "\n".join(map(str, shown)))
    ok(text)


def eventually(text: str, read, expected: object) -> None:
    """As `check`, for what controllers bring about."""
    try:
        wait(text, lambda: read() == expected)
    except Failed:
        raise Failed(f"{text}\nexpected: {expected}\nbut it is: {read()}") from None
    ok(text)
