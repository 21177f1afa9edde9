"""Changes of the values of a release with the defaults, one after the other, and its end."""

import json

from cluster import Cluster, wait
from checks.disruption import claimed
from release import NAME, TOKEN, Release, check, ok


def shards(*names: str, **more: dict) -> str:
    listed = [{"name": name} | more.get(name, {}) for name in names]
    return f"redis.shards={json.dumps(listed)}"


FOUR = ("--set-json", shards("a", "b", "c", "d"))


def served(release: Release) -> list[str]:
    """The names of the shards that the servers use."""
    container = release.get("deployments")["spec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: one.get("value", "") for one in container["env"]}
    return [shard.split("=")[0] for shard in variables["RINGQ_SHARDS"].split()]


def passwords(release: Release) -> dict:
    return {one["metadata"]["name"]: one["data"] for one in release.items("secrets", instance=NAME)}


def rolls(release: Release, *arguments: str) -> int:
    """Upgrades, waits, and returns how many servers were available at least."""
    wait("the servers are available", lambda: rolled(release), 60)
    with release.watch("deployments") as servers:
        release.upgrade(*arguments)
        wait("the servers are rolled", lambda: rolled(release), 60)
    return servers.least("availableReplicas")


def rolled(release: Release) -> bool:
    deployment = release.get("deployments")
    status = deployment["status"]
    number = deployment["spec"]["replicas"]
    return (status["observedGeneration"] == deployment["metadata"]["generation"] and status["replicas"] == number
            and status["updatedReplicas"] == status.get("availableReplicas") == number)


def nothing_changed(release: Release) -> None:
    before, running = release.settled(), release.running()
    release.upgrade()
    check(release.settled() == before, "upgrade: with the same values no object changes, Secrets neither")
    check(release.running() == running, "upgrade: with the same values no pod restarts")


def store_changed(release: Release) -> None:
    before, running = release.settled(), release.running()
    release.upgrade("--set", "store=sqlite,replicas=1", refused="this release has store redis")
    external = ("--set-json", 'external.shards=[{"name":"a","secretName":"s"}]')
    release.upgrade("--set", "store=external", *external, refused="this release has store redis")
    same = release.settled() == before and release.running() == running
    check(same, "store changed: an upgrade to another store is refused, no object changes")


def shard_added(release: Release) -> None:
    secrets, before = passwords(release), release.identities("redis")
    fewest = rolls(release, *FOUR)
    release.wait_ready("redis", 4)
    after = release.identities("redis")
    check(after.items() >= before.items(), "shard added: no other shard restarts", before, after)
    check(served(release) == ["a", "b", "c", "d"], "shard added: the servers use it", served(release))
    check(fewest >= 2, "shard added: never fewer than 2 servers available", fewest)
    check(secrets != {} and passwords(release) == secrets, "shard added: the generated password is the same")


def shard_retired(release: Release) -> None:
    before = release.identities("redis")
    fewest = rolls(release, "--set-json", shards("a", "b", "c", "d", d={"retired": True}))
    check(served(release) == ["a", "b", "c"], "shard retired: the servers no longer use it", served(release))
    check(release.identities("redis") == before, "shard retired: its Redis still runs, no shard restarts")
    check(fewest >= 2, "shard retired: never fewer than 2 servers available", fewest)


def shard_removed(release: Release) -> None:
    before, volumes = release.identities("redis"), claimed(release)
    release.upgrade("--set-json", shards("a", "b", "c"))
    release.wait_ready("redis", 3)
    wait("the StatefulSet is gone", lambda: not release.get("statefulsets", "ringq-redis-d"))
    wait("the Service is gone", lambda: not release.get("services", "ringq-redis-d"))
    ok("shard removed: its StatefulSet and Service are gone")
    check(claimed(release) == volumes and "data-ringq-redis-d-0" in volumes, "shard removed: its volume stays", volumes)
    after = release.identities("redis")
    check(after.items() <= before.items(), "shard removed: no other shard restarts", before, after)
    release.upgrade(*FOUR)
    release.wait_ready("redis", 4)
    check(claimed(release) == volumes, "shard removed: put back, it has its volume again", claimed(release))


def image_changed(release: Release) -> None:
    def replica_sets() -> dict[str, int]:
        return {one["metadata"]["name"]: one["status"]["replicas"] for one in release.items("replicasets")}

    before, redis = replica_sets(), release.identities("redis")
    old = {name for name, number in before.items() if number}
    needed = release.status("poddisruptionbudgets")["desiredHealthy"]
    fewest = rolls(release, *FOUR, "--set", "image.tag=0.1.1")
    wait("the old servers are gone", lambda: sum(replica_sets().values()) == 2)
    after = replica_sets()
    new = {name for name, number in after.items() if number}
    check(len(new) == 1 and not new & set(before) and after[old.pop()] == 0,
          "image changed: a new ReplicaSet has all servers, the old one none", before, after)
    images = {pod["spec"]["containers"][0]["image"] for pod in release.pods("server")}
    check(images == {"ringq:0.1.1"}, "image changed: all servers have the new one", images)
    check(fewest >= 2 > needed, f"image changed: at least {fewest} servers available, {needed} by the budget", fewest)
    check(release.identities("redis") == redis, "image changed: no shard restarts")


def restarted(release: Release) -> None:
    """`kubectl rollout restart`, and an upgrade after it."""
    before = release.identities("server")
    wait("the servers are available", lambda: rolled(release))
    with release.watch("deployments") as servers:
        release.cluster.kubectl("rollout", "restart", f"deployment/{NAME}", "-n", release.name)
        wait("the servers are rolled", lambda: rolled(release))
    after = release.identities("server")
    check(not before.keys() & after.keys() and servers.least("availableReplicas") >= 2,
          "restart: both servers are new, never fewer than 2 available", before, after)
    settled = release.settled()
    release.upgrade()
    same = release.settled() == settled and release.identities("server") == after
    check(same, "restart: an upgrade after it restarts none")


def redis_changed(release: Release) -> None:
    """A new image of the shards with `OnDelete`, and back with `RollingUpdate`."""
    values = (*FOUR, "--set", "image.tag=0.1.1")
    before = release.identities("redis")
    release.upgrade(*values, "--set", "redis.updateStrategy=OnDelete,redis.image.tag=8.2.9")
    release.running()
    check(release.identities("redis") == before, "redis changed: with OnDelete no shard restarts")
    release.cluster.kubectl("delete", "pod", "ringq-redis-a-0", "-n", release.name)
    release.wait_ready("redis", 4)
    images = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in release.pods("redis")}
    new = {name for name, image in images.items() if image == "redis:8.2.9"}
    check(new == {"ringq-redis-a-0"}, "redis changed: a pod that is deleted comes back with the new image", images)
    release.upgrade(*values)
    release.wait_ready("redis", 4)
    images = [pod["spec"]["containers"][0]["image"] for pod in release.pods("redis")]
    check(images == ["redis:8.2"] * 4, "redis changed: with RollingUpdate all shards have the new image", images)


def image_broken(release: Release) -> None:
    """A release whose servers do not become ready costs no server, and a rollback ends it."""
    before, revision = release.settled(), current(release)
    wait("the servers are available", lambda: rolled(release))
    with release.watch("deployments") as servers:
        release.upgrade(*FOUR, "--set", "image.tag=broken", "--timeout", "8s", refused="UPGRADE FAILED")
        images = [pod["spec"]["containers"][0]["image"] for pod in release.pods("server")]
        release.rollback(revision)
        wait("the servers are rolled back", lambda: rolled(release))
    check(images.count("ringq:broken") == 1 and servers.least("availableReplicas") >= 2,
          "image broken: the upgrade stops at the first server, never fewer than 2 available", images)
    check(release.settled() == before, "rollback: all objects are those before the broken upgrade")


def broken_sets(cluster: Cluster) -> None:
    """A rollback replaces pods of StatefulSets that never became ready: by default it would wait for them for ever."""
    for name, good, broken in [
        ("sqlite", "store=sqlite,replicas=1", "image.tag=broken"),
        ("redis", "store=redis", "redis.image.tag=broken"),
    ]:
        release = Release(cluster, f"broken-{name}")
        release.create()
        release.install("--set", good)
        before, volumes = release.settled(), claimed(release)
        release.upgrade("--set", good, "--set", broken, "--timeout", "5s", refused="UPGRADE FAILED")
        release.rollback(1)
        same = release.settled() == before and claimed(release) == volumes
        check(same, f"image broken: store {name}: a rollback replaces the pods that are not ready, on their volumes")


def rolled_back(release: Release, first: dict) -> None:
    """To the first revision, past all the changes."""
    secrets = passwords(release)
    release.rollback(1)
    release.wait_ready("server", 2)
    release.wait_ready("redis", 3)
    now = release.settled()
    check(now == first, "rollback: to the first revision, all objects are those of the install",
          *differences(first, now))
    check(passwords(release) == secrets, "rollback: the generated password is the same")


def differences(before: dict, after: dict) -> list[str]:
    return [f"{key}:\n  {before.get(key)}\n  {after.get(key)}"
            for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]


def current(release: Release) -> int:
    history = release.cluster.helm("history", NAME, "-n", release.name, "-o", "json")
    return json.loads(history)[-1]["revision"]


def scaled(release: Release) -> None:
    release.cluster.kubectl("scale", "deployment", NAME, "-n", release.name, "--replicas=4")
    release.wait_ready("server", 4)
    nodes = [pod["spec"]["nodeName"] for pod in release.pods("server")]
    check(len(set(nodes)) == 3, "scale: 4 servers ready, on all three nodes", nodes)
    wait("the budget follows", lambda: release.status("poddisruptionbudgets")["desiredHealthy"] == 3)
    ok("scale: the budget follows: 3 of 4 needed")
    release.upgrade("--set", "replicas=4")
    check(len(release.pods("server")) == 4, "scale: an upgrade with `replicas` 4 keeps them")
    release.cluster.kubectl("scale", "deployment", NAME, "-n", release.name, "--replicas=3")
    release.wait_ready("server", 3)
    force = []
    if release.cluster.helm_major() >= 4:
        # Helm 4 applies on the server, where `kubectl scale` now owns the field.
        release.upgrade("--set", "replicas=2", refused="conflict")
        ok("scale: an upgrade with another number is refused")
        force = ["--force-conflicts"]
    release.upgrade("--set", "replicas=2", *force)
    release.wait_ready("server", 2)
    ok(f"scale: an upgrade with `replicas` 2 {' '.join(force)} brings back 2 servers")


def autoscaled(release: Release) -> None:
    """An autoscaler that takes over from `replicas`."""
    on = ("--set", "replicas=3", "--set", "autoscaling.enabled=true")
    release.upgrade("--set", "replicas=3")
    release.wait_ready("server", 3)
    if release.cluster.helm_major() >= 4:
        # Without another owner the field would go with its line in the chart, and its default is 1.
        owned = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 3},
                 "metadata": {"name": NAME, "namespace": release.name}}
        apply = ("apply", "--server-side", "--field-manager=autoscaling", "-f", "-")
        release.cluster.kubectl(*apply, stdin=json.dumps(owned))
        fewest = rolls(release, *on)
        check(fewest == 3, "autoscaling: switched on after `kubectl apply` of the number, it stays", fewest)
    else:
        release.upgrade(*on)
    wait("the autoscaler is at work", lambda: release.status("horizontalpodautoscalers").get("currentReplicas"))
    ok("autoscaling: the autoscaler finds its Deployment")
    release.cluster.kubectl("scale", "deployment", NAME, "-n", release.name, "--replicas=4")
    release.wait_ready("server", 4)
    fewest = rolls(release, *on, "--set", "image.tag=0.1.2")
    check(fewest == 4, "autoscaling: an upgrade keeps the number of servers", fewest)


def weighted(release: Release) -> None:
    """A weight moves settings and list of shards, with the passwords, from a ConfigMap into a Secret."""
    password = release.secret_value("ringq-redis", "password")
    fewest = rolls(release, "--set-json", shards("a", "b", "c", b={"weight": 2}))
    settings = release.secret_value("ringq-config", "ringq.toml")
    check(settings.count(f":{password}@") == 3, "weight: the settings have the generated password of before")
    check(release.get("configmaps", "ringq-config") is None, "weight: the ConfigMap of the settings is gone")
    check(fewest >= 2, "weight: never fewer than 2 servers available", fewest)
    before = release.running()
    release.upgrade("--set-json", shards("a", "b", "c", b={"weight": 2}))
    check(release.secret_value("ringq-config", "ringq.toml") == settings and release.running() == before,
          "weight: an upgrade with the same values changes no settings and restarts no server")
    rolls(release)
    check(release.get("secrets", "ringq-config") is None, "weight: taken back, the Secret of the settings is gone")


def password_named(release: Release) -> None:
    """The operator names the Secret that the chart made, as for a move to a tool that renders without a cluster."""
    revision, before, secrets, running = current(release), release.settled(), passwords(release), release.running()
    named = ("--set", f"redis.auth.existingSecret=ringq-redis,auth.existingSecret={TOKEN}")
    release.upgrade(*named)
    same = passwords(release) == secrets and release.running() == running
    check(secrets.keys() >= {"ringq-redis", TOKEN} and same,
          "password, token: the generated Secrets stay when `existingSecret` names them, no pod restarts")
    release.upgrade()
    same = release.settled() == before and release.running() == running
    check(same, "password, token: taken back, the chart has its Secrets again, with the same password and token")
    release.upgrade(*named)
    release.rollback(revision)
    same = release.settled() == before and release.running() == running
    check(same, "password, token: rolled back, too", *differences(before, release.settled()))


def removed(release: Release) -> None:
    secrets = passwords(release)
    stays = release.uninstall()
    expected = {f"data-ringq-redis-{shard}-0" for shard in "abcd"} | {"ringq-redis", TOKEN}
    check(stays == expected, "uninstall: the volumes of the four shards, password and token stay, nothing else", stays)
    volumes = claimed(release)
    release.install()
    release.wait_ready("redis", 3)
    check(claimed(release) == volumes, "uninstall: a new install has the volumes of the old one", claimed(release))
    check(passwords(release) == secrets, "uninstall: a new install has the password and the token of the old one")
    release.uninstall()
    release.install("--set", f"redis.auth.existingSecret=ringq-redis,auth.existingSecret={TOKEN}")
    release.wait_ready("redis", 3)
    check(passwords(release) == secrets, "uninstall: a new install can name the Secrets of the old one")
    release.uninstall()
    release.cluster.kubectl("delete", "pvc,secret", "-n", release.name, "-l", f"app.kubernetes.io/instance={NAME}")
    check(not release.everything(), "uninstall: volumes, password and token are deleted by their label", *release.everything())
