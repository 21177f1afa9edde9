"""Evictions and a node drain against the budgets."""

from cluster import wait
from release import NAME, Release, check, ok

NODES = ("node-a", "node-b", "node-c")
TOO_MANY_REQUESTS = 429


def evictions(release: Release) -> None:
    """One pod of a component may go; the next one not before the first has its replacement."""
    for component, number in [("server", 2), ("redis", 3)]:
        before = release.identities(component)
        first, second = sorted(before)[:2]
        # Where no node takes pods, the replacement stays away.
        release.cluster.kubectl("cordon", *NODES)
        allowed = release.cluster.evict(release.name, first)
        refused = release.cluster.evict(release.name, second)
        check((allowed, refused) == (201, TOO_MANY_REQUESTS),
              f"eviction: one pod of {component} is evicted, a second one is refused", allowed, refused)
        stays = release.identities(component).get(second)
        check(stays == before[second], f"eviction: the refused pod of {component} still runs", second)
        release.cluster.kubectl("uncordon", *NODES)
        release.wait_ready(component, number)
        wait("the budget allows the next one", lambda: budget(release, component)["disruptionsAllowed"] == 1)
        ok(f"eviction: {component} has {number} ready pods again")


def budget(release: Release, component: str) -> dict:
    return release.status("poddisruptionbudgets", {"server": NAME, "redis": f"{NAME}-redis"}[component])


def node_drain(release: Release) -> None:
    volumes = claimed(release)
    at = [pod["spec"]["nodeName"] for pod in release.pods("server") + release.pods("redis")]
    node = max(NODES, key=at.count)
    wait("both servers are available", lambda: release.status("deployments").get("availableReplicas") == 2)
    with release.watch("deployments") as servers, release.watch("poddisruptionbudgets", "ringq-redis") as shards:
        release.cluster.kubectl("drain", node, "--ignore-daemonsets", "--timeout=60s")
        release.wait_ready("server", 2)
        release.wait_ready("redis", 3)
    least = servers.least("availableReplicas"), shards.least("currentHealthy")
    check(least[0] >= 1 and least[1] >= 2,
          f"drain: {at.count(node)} pods leave {node}, at least {least[0]} server and {least[1]} shards ready", least)
    check(claimed(release) == volumes, "drain: each shard has its volume again", claimed(release), volumes)
    release.cluster.kubectl("uncordon", node)


def claimed(release: Release) -> dict[str, str]:
    """The volume of each claim."""
    claims = release.items("persistentvolumeclaims")
    return {one["metadata"]["name"]: one["spec"]["volumeName"] for one in claims}
