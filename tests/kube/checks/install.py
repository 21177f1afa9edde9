"""What an install with the defaults makes, and what the cluster makes of it."""

from release import NAME, Release, check, eventually, ok

SHARDS = ["a", "b", "c"]


def accepted(release: Release) -> None:
    release.install()
    release.wait_ready("server", 2)
    release.wait_ready("redis", 3)
    ok("install: accepted by Pod Security `restricted` without a warning, 2 servers and 3 shards ready")
    nodes = [pod["spec"]["nodeName"] for pod in release.pods("server")]
    check(len(set(nodes)) == 2, "install: the servers are on two nodes", nodes)
    nodes = [pod["spec"]["nodeName"] for pod in release.pods("redis")]
    check(len(set(nodes)) == 3, "install: the shards are on three nodes", nodes)


def helm_test(release: Release) -> None:
    """Pods of hooks are made by Helm itself, so only here Pod Security sees this one. No container runs."""
    release.cluster.helm("test", NAME, "-n", release.name, "--timeout", "30s")
    ok("install: the pod of `helm test` is accepted")


def selectors(release: Release) -> None:
    """Services, budgets and policies find the pods of their component and no others."""
    servers = sorted(release.identities("server"))
    expected = {"ringq": ([7700, 7701], servers), "ringq-headless": ([7700], servers)}
    expected |= {f"ringq-redis-{shard}": ([6379], [f"ringq-redis-{shard}-0"]) for shard in SHARDS}
    eventually("install: each Service leads to its pods and ports", lambda: endpoints(release), expected)
    services = {one["metadata"]["name"]: one["spec"]["ports"] for one in release.items("services")}
    ports = {name: [port["port"] for port in ports] for name, ports in services.items()}
    theirs = {name: of_pods for name, (of_pods, _) in expected.items()}
    check(ports == theirs, "install: each Service has the ports of its pods", ports)

    for name, component in [("ringq", "server"), ("ringq-redis", "redis")]:
        number = len(release.pods(component))
        eventually(f"install: budget {name}: {number} pods, {number - 1} needed, 1 disruption allowed",
                   lambda: budget(release, name), [number, number, number - 1, 1])

    everyone = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in release.items("pods")}
    for name, component in [("ringq", "server"), ("ringq-redis", "redis")]:
        policy = release.get("networkpolicies", name)["spec"]
        chosen = {pod for pod, labels in everyone.items() if selects(policy["podSelector"], labels)}
        mine = set(release.identities(component))
        check(chosen == mine, f"install: policy {name} is for the pods of {component}", chosen)
    rules = release.get("networkpolicies", "ringq")["spec"]["egress"]
    selectors = [to["podSelector"] for rule in rules for to in rule.get("to", [])]
    reached = {pod for pod, labels in everyone.items() if any(selects(one, labels) for one in selectors)}
    check(reached == set(release.identities("redis")), "install: the policy lets servers reach all shards", reached)


def endpoints(release: Release) -> dict[str, tuple[list[int], list[str]]]:
    """The ports and the ready pods that each Service leads to."""
    found = {}
    for piece in release.items("endpointslices"):
        ports = sorted(port["port"] for port in piece["ports"])
        pods = sorted(one["targetRef"]["name"] for one in piece["endpoints"] if one["conditions"]["ready"])
        found[piece["metadata"]["labels"]["kubernetes.io/service-name"]] = (ports, pods)
    return found


def budget(release: Release, name: str) -> list[int]:
    status = release.status("poddisruptionbudgets", name)
    return [status.get(key) for key in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed")]


def selects(selector: dict, labels: dict) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def no_rights(release: Release) -> None:
    """The account of the servers can do what every account can, and no pod has a token."""
    def rights(account: str) -> str:
        user = f"system:serviceaccount:{release.name}:{account}"
        return release.cluster.kubectl("auth", "can-i", "--list", "-n", release.name, f"--as={user}")

    account = release.pods("server")[0]["spec"]["serviceAccountName"]
    mine, default = rights(account), rights("default")
    check(account == NAME and mine == default, "rights: the account of the servers has those of any account", mine)
    bindings = release.names("roles") | release.names("rolebindings")
    check(not bindings, "rights: the chart makes no role and no binding", bindings)
    tokens = [
        f"{pod['metadata']['name']}: {volume['name']}"
        for pod in release.items("pods")
        for volume in pod["spec"].get("volumes", [])
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", []))
    ]
    check(not tokens, "rights: no pod has a token mounted", tokens)
