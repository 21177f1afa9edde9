"""Manifests that need no Helm: deploy/kubernetes, and the kinds of other projects."""

import json

from cluster import PROGRAMS, REPOSITORY, Cluster, wait
from release import CHART, CLAIMS, NAME, TOKEN, Namespace, Release, check, eventually, ok

PLAIN = REPOSITORY / "deploy/kubernetes"


def definitions(cluster: Cluster) -> None:
    """The resource definitions of the Prometheus operator and of KEDA, from their own sources."""
    for file in sorted((PROGRAMS / "crds").glob("*.yaml")):
        cluster.kubectl("create", "-f", str(file))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


def monitoring(release: Release) -> None:
    release.upgrade("--set", "serviceMonitor.enabled=true,prometheusRule.enabled=true")
    monitor = release.get("servicemonitors")["spec"]
    ports = [endpoint["port"] for endpoint in monitor["endpoints"]]
    labels = monitor["selector"]["matchLabels"]
    found = [
        (service["metadata"]["name"], port["name"])
        for service in release.items("services")
        for port in service["spec"]["ports"]
        if labels.items() <= service["metadata"]["labels"].items() and port["name"] in ports
    ]
    check(found == [(NAME, "http")], "monitoring: the ServiceMonitor is accepted and finds one port", found)
    rules = release.get("prometheusrules")["spec"]["groups"][0]["rules"]
    check(all(f'namespace="{release.name}"' in rule["expr"] for rule in rules),
          f"monitoring: the PrometheusRule is accepted, {len(rules)} alerts on the series of this namespace", rules)
    release.upgrade()
    gone = not release.items("servicemonitors") and not release.items("prometheusrules")
    check(gone, "monitoring: switched off, both are gone")


def manifests(cluster: Cluster) -> None:
    for file in sorted(PLAIN.glob("*.yaml")):
        namespace = Namespace(cluster, f"plain-{file.stem}")
        namespace.create()
        here = ("-n", namespace.name, "-f", str(file))
        if "ringq-redis" in file.read_text():
            cluster.kubectl("create", "secret", "generic", "ringq-redis", "-n", namespace.name,
                            "--from-literal=password=letters1")
        # As docs/kubernetes.md describes it.
        cluster.kubectl("create", "secret", "generic", TOKEN, "-n", namespace.name,
                        f"--from-file={CHART / 'files/identities.toml'}", "--from-literal=token=letters-and-digits-1")
        mine = set(namespace.everything())
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", *here)
        check(set(namespace.everything()) == mine, f"plain: {file.name}: accepted by a dry run on the server, strictly")
        cluster.kubectl("apply", "--validate=strict", *here)
        sets = [(kind, one) for kind in ("deployments", "statefulsets") for one in namespace.items(kind)]
        for kind, one in sets:
            name, number = one["metadata"]["name"], one["spec"]["replicas"]
            wait(f"{name} is ready", lambda: namespace.status(kind, name).get("readyReplicas") == number)
        ok(f"plain: {file.name}: {', '.join(one['metadata']['name'] for _, one in sets)} ready")
        before = namespace.running()
        cluster.kubectl("apply", *here)
        check(namespace.running() == before, f"plain: {file.name}: applied again, no pod restarts")
        claims = {key for key in namespace.everything() if key.startswith(CLAIMS)}
        cluster.kubectl("delete", *here, "--wait", "--timeout=60s")
        eventually(f"plain: {file.name}: deleted, the volumes stay", lambda: set(namespace.everything()), mine | claims)


def examples(cluster: Cluster) -> None:
    namespace = Namespace(cluster, "examples")
    namespace.create()
    for file in sorted((PLAIN / "examples").glob("*.yaml")):
        here = ("-n", namespace.name, "-f", str(file), "--validate=strict")
        cluster.kubectl("apply", "--dry-run=server", *here)
        made = cluster.kubectl("apply", *here, "-o", "json")
        kinds = [one["kind"] for one in json.loads(made).get("items", [])]
        ok(f"plain: examples/{file.name}: {', '.join(kinds)} accepted")
    wait("the pods of the examples are ready", lambda: all(
        one["status"].get("readyReplicas") == one["spec"]["replicas"] for one in namespace.items("deployments")))
    ok("plain: examples: accepted by Pod Security, ready")
