"""Provokes alerts of deploy/monitoring/alerts.yaml, each of which has to fire and to end."""

import re

from report import Report, wait_until

# Seconds that the change of a gauge, a scrape, an evaluation and the shortened times take together, with a margin for a busy
# machine.
FIRES_WITHIN = 25
ENDS_WITHIN = 45
# Alerts that would take minutes, or a second machine. Their unit tests are in deploy/monitoring/alerts_test.yaml.
BY_PROMTOOL_ALONE = {"RingqShardRefusesReads", "RingqFormerRingOpen", "RingqClocksDiffer"}


def shortened(rules: str) -> str:
    """The rules with times and windows of seconds in place of minutes, and nothing else changed."""
    rules = re.sub(r"(?m)^( +for: ).*$", r"\g<1>2s", rules)
    rules = re.sub(r"\[\d+m\]", "[10s]", rules)
    return rules.replace("ringq_oldest_ready_age_seconds) > 300", "ringq_oldest_ready_age_seconds) > 10")


class Alerts:
    def __init__(self, report: Report, stack) -> None:
        self.report, self.prometheus = report, stack.prometheus
        self.ended: set[str] = set()
        text = (stack.root / "deploy/monitoring/alerts.yaml").read_text()
        self.names = set(re.findall(r"- alert: (\w+)", text))

    def firing(self, name: str, **labels: str) -> bool:
        return any(alert["state"] == "firing" and alert["labels"]["alertname"] == name
                   and labels.items() <= alert["labels"].items() for alert in self.prometheus.alerts())

    def has_fired(self, name: str, **labels: str) -> bool:
        matchers = ",".join(f'{label}="{value}"' for label, value in {"alertname": name, "alertstate": "firing", **labels}.items())
        return bool(self.prometheus.query(f"count_over_time(ALERTS{{{matchers}}}[10m])"))

    def fires(self, name: str, **labels: str) -> None:
        fired = wait_until(lambda: self.firing(name, **labels), FIRES_WITHIN)
        self.report.check(f"{name} {labels or ''} fires", fired, self.prometheus.alerts())

    def fired_and_ends(self, name: str, **labels: str) -> None:
        """The alert has fired since the start, and is over soon."""
        fired = self.report.check(f"{name} {labels or ''} has fired", self.has_fired(name, **labels))
        ended = wait_until(lambda: not self.firing(name), ENDS_WITHIN)
        if self.report.check(f"{name} {labels or ''} has ended", ended, self.prometheus.alerts()) and fired:
            self.ended.add(name)

    def never_fired_for_others(self, name: str, label: str, value: str) -> None:
        query = f'count by ({label}) (count_over_time(ALERTS{{alertname="{name}",alertstate="firing"}}[10m]))'
        self.report.equal(f"{name} fired for {value} alone", [each["metric"][label] for each in self.prometheus.query(query)], [value])


def provoke(report: Report, stack, load) -> None:
    alerts = Alerts(report, stack)
    # The kill of the Redis of shard b.
    for name in ("RingqShardDown", "RingqShardNotCounted", "RingqStoreErrors"):
        alerts.fired_and_ends(name, shard="b")
        alerts.never_fired_for_others(name, "shard", "b") if name != "RingqStoreErrors" else None
    waiting(alerts, load)
    full(alerts, stack, load)
    evicting(alerts, stack)
    servers(alerts, stack, load)
    report.equal("each other alert is listed as one that promtool alone tests", alerts.names - alerts.ended, BY_PROMTOOL_ALONE)


def waiting(alerts: Alerts, load) -> None:
    """A worker takes the topic that had none."""
    alerts.fires("RingqJobsWait", topic="backlog")
    load.spawn(load.stream, load.clients[0], "backlog", load.ack_all)
    alerts.fired_and_ends("RingqJobsWait", topic="backlog")


def full(alerts: Alerts, stack, load) -> None:
    """Shard c comes near its maxmemory, then is beyond it."""
    import grpc

    redis = stack.redis["c"]
    redis.command("CONFIG", "SET", "maxmemory", str(int(redis.info("used_memory") / 0.9)))
    alerts.fires("RingqStoreFillsUp", shard="c")
    load.allowed.add(grpc.StatusCode.RESOURCE_EXHAUSTED)
    redis.command("CONFIG", "SET", "maxmemory", str(redis.info("used_memory") // 2))
    load.spawn(load.fill)
    alerts.fires("RingqStoreFull", shard="c")
    alerts.fires("RingqCallsRefused", method="Enqueue")
    load.filled.set()
    redis.command("CONFIG", "SET", "maxmemory", "1gb")
    for name in ("RingqStoreFillsUp", "RingqStoreFull"):
        alerts.fired_and_ends(name, shard="c")
        alerts.never_fired_for_others(name, "shard", "c")
    alerts.fired_and_ends("RingqCallsRefused", method="Enqueue")


def evicting(alerts: Alerts, stack) -> None:
    """The policy of shard c is changed to one that drops jobs, and back."""
    redis = stack.redis["c"]

    def set_policy(policy: str) -> None:
        redis.command("CONFIG", "SET", "maxmemory-policy", policy)
        # A Redis is checked when a connection is made; otherwise the change is noticed some seconds later.
        redis.command("CLIENT", "KILL", "TYPE", "normal")

    set_policy("allkeys-lru")
    alerts.fires("RingqShardRefusesJobs", shard="c")
    set_policy("noeviction")
    alerts.fired_and_ends("RingqShardRefusesJobs", shard="c")


def servers(alerts: Alerts, stack, load) -> None:
    """One server stops; then the load; another server has another list of shards; then both servers stop."""
    one, two = stack.servers.values()
    two.terminate()
    alerts.fires("RingqServerDown", instance=two.instance)
    two.start()
    alerts.fired_and_ends("RingqServerDown", instance=two.instance)
    load.stop()
    alerts.fired_and_ends("RingqDeadJobsGrow", topic="flaky")
    alerts.fired_and_ends("RingqLeasesRunOut", topic="hang")
    # A server that lacks a shard; it is not scraped, the others report it.
    third = stack.server("three", {name: redis for name, redis in stack.redis.items() if name != "b"})
    third.start()
    alerts.fires("RingqRingDisagreement")
    third.terminate()
    alerts.fired_and_ends("RingqRingDisagreement")
    for server in (one, two):
        server.terminate()
    alerts.fires("RingqNoMetrics")
    for server in (one, two):
        server.start()
    alerts.fired_and_ends("RingqNoMetrics")
