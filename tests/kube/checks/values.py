"""Values other than the defaults: those of the chart's own tests, other stores, and wrong ones."""

import json

from cluster import Cluster, wait
from checks.disruption import claimed
from checks.upgrade import served, shards
from release import CHART, TOKEN, Release, check, ok

IDENTITIES = CHART / "files/identities.toml"


def values_files(cluster: Cluster) -> None:
    """Each values file of the chart's own tests is installed as an operator would, and removed."""
    for file in sorted((CHART / "ci").glob("*-values.yaml")):
        name = file.stem.removesuffix("-values")
        release = Release(cluster, f"values-{name}")
        release.create()
        # All that the files name, beside the classes `fast` and `queue`.
        release.secret("my-redis", a="redis://one.example:6379", b="rediss://two.example:6379", secret="letters1")
        release.secret("other-redis", url="redis://three.example:6379")
        release.secret("my-redis-tls", **{"ca_crt": "ca", "tls_crt": "certificate", "tls_key": "key"})
        release.secret("ringq-tls", **{"tls_crt": "certificate", "tls_key": "key"})
        release.secret("ringq-clients", ca_crt="ca")
        release.secret("my-prometheus", secret="letters-and-digits-1")
        release.secret("my-ringq", ringq_toml='[[shard]]\nname = "a"\nurl = "redis://one.example:6379"\n')
        release.secret("my-identities", identities_toml=IDENTITIES.read_text(), token="letters-and-digits-1")
        if "plain" in name:
            release.secret("ringq-redis", password="letters1")
            release.secret("ringq-identities", identities_toml=IDENTITIES.read_text(), token="letters-and-digits-1")
        release.secret("pull", _dockerconfigjson='{"auths": {}}')
        release.mine = set(release.everything())
        release.install("-f", str(file))
        objects = release.settled()
        sets = sorted(key for key in objects if key.startswith(("deployments/", "statefulsets/")))
        for key in sets:
            resource, one = key.split("/")
            wanted = objects[key]["spec"]["replicas"]
            wait(f"{key} is ready", lambda: release.status(resource, one).get("readyReplicas", 0) == wanted)
        dropped = release.dropped()
        check(not dropped, f"values: ci/{file.name}: the API server keeps each field", *dropped)
        claims = release.names("persistentvolumeclaims")
        made = release.kept_secrets()
        stays = release.uninstall()
        check(stays == claims | made, f"values: ci/{file.name}: {', '.join(sets)} ready; uninstall leaves "
              f"{len(claims)} volumes and the Secrets {', '.join(sorted(made)) or 'of the operator'}", stays)


def external(cluster: Cluster) -> None:
    """The URLs stay in the Secret of the operator; the variables of the servers refer to them."""
    release = Release(cluster, "external")
    release.create()
    release.secret("shards", one="redis://:letters1@one.example:6379", two="redis://:letters1@two.example:6379")
    release.mine = set(release.everything())
    listed = [{"name": name, "secretName": "shards", "secretKey": name} for name in ("one", "two")]
    store = ("--set", "store=external", "--set-json")
    release.install(*store, f"external.shards={json.dumps(listed[:1])}")
    release.wait_ready("server", 2)
    check(served(release) == ["one"], "external: servers with a shard of a Secret are ready", served(release))
    release.upgrade(*store, f"external.shards={json.dumps(listed)}")
    release.wait_ready("server", 2)
    check(served(release) == ["one", "two"], "external: an upgrade adds a shard", served(release))
    made = {key: one for key, one in release.settled().items() if key not in release.mine}
    copies = [key for key, one in made.items() if "example:6379" in str(one)]
    copies += [key for key in made if key.startswith("secrets/") and key != f"secrets/{TOKEN}"]
    copies += [key for key in made if key.startswith("statefulsets/")]
    check(not copies, "external: the chart makes no Secret but that of the token, no copy of a URL and no shard", copies)
    check(release.uninstall() == {TOKEN}, "external: uninstall leaves the token; the Secret of the operator stays")


def sqlite(cluster: Cluster) -> None:
    release = Release(cluster, "sqlite")
    release.create()
    store = ("--set", "store=sqlite,replicas=1")
    release.install(*store)
    release.wait_ready("server", 1)
    volumes, before = claimed(release), release.identities("server")
    one = before.keys() == {"ringq-0"} and len(volumes) == 1
    check(one, "sqlite: one server with one volume is ready", before, volumes)
    check(not release.items("poddisruptionbudgets"), "sqlite: no budget keeps a node from being drained")
    release.upgrade(*store, "--set", "image.tag=0.1.1")
    release.wait_ready("server", 1)
    after = release.identities("server")
    check(after.keys() == before.keys() and after != before and claimed(release) == volumes,
          "sqlite: a change of the image restarts the server on its volume", after, claimed(release))
    release.rollback(1)
    release.wait_ready("server", 1)
    ok("sqlite: rollback")
    for other in ("redis", "external"):
        shards_of_other = ("--set-json", 'external.shards=[{"name":"a","secretName":"s"}]')
        release.upgrade("--set", f"store={other}", *shards_of_other, refused="this release has store sqlite")
    ok("sqlite: an upgrade to another store is refused")
    release.upgrade("--set", "store=sqlite,replicas=2", refused="/replicas")
    ok("sqlite: an upgrade to 2 servers is refused")
    check(release.uninstall() == {*volumes, TOKEN}, "sqlite: uninstall leaves the volume and the token, and nothing else")


def refusals(cluster: Cluster) -> None:
    """Wrong values make no object; .ci/check-chart has more of them."""
    release = Release(cluster, "refusals")
    release.create()
    for error, *arguments in [
        ("the name a is given twice", "--set-json", shards("a", "b", "a")),
        ("/replicas", "--set", "store=sqlite,replicas=2"),
        ("'replcas' not allowed", "--set", "replcas=3"),
        ("'wieght' not allowed", "--set-json", shards("a", a={"wieght": 2})),
        ("/settings/drain_delay", "--set", "settings.drain_delay=5"),
        ("at least one shard", "--set-json", shards("a", a={"retired": True})),
        # The API server refuses these, too, but only after the other objects of the release are made.
        ("minReplicas is above maxReplicas", "--set", "autoscaling.enabled=true,autoscaling.minReplicas=7"),
        ("podLabels: the chart sets", "--set", r"podLabels.app\.kubernetes\.io/component=a"),
        ("serviceMonitor.token.secretName", "--set", "serviceMonitor.enabled=true,metricsOpen=false"),
        ("extraEnv: the variable RINGQ_LISTEN", "--set-json", 'extraEnv=[{"name":"RINGQ_LISTEN","value":"a"}]'),
    ]:
        release.install(*arguments, refused=error)
        check(not release.everything(), f"refused: {' '.join(arguments)}: {error}", release.everything().keys())
