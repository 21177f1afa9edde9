"""Provokes each alert of deploy/monitoring/alerts.yaml, which has to fire and to end."""

import re
import socket
import threading
import time

from report import Report, wait_until
from stack import RedisConnection

# Seconds that the change of a gauge, a scrape, an evaluation and the shortened times take together, with a margin for a busy
# machine.
FIRES_WITHIN = 25
ENDS_WITHIN = 45
# Time for which servers must have had one list before former rings are closed, and the pause between two such attempts.
AGREEMENT, RELEASE_PAUSE = 60, 5


def shortened(rules: str) -> str:
    """The rules with times and windows of seconds in place of minutes and hours, and nothing else changed."""
    rules = re.sub(r"(?m)^( +for: ).*$", r"\g<1>2s", rules)
    rules = re.sub(r"\[\d+[mh]\]", "[10s]", rules)
    rules = re.sub(r"offset \d+m", "offset 10s", rules)
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

    def value(self, query: str, combine=sum) -> float:
        """The value of the series of a query; of several their sum, or what `combine` makes of them."""
        return combine(each["value"] for each in self.prometheus.query(query))

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


def provoke(alerts: Alerts, stack, load, moved: "LeftOutShard") -> None:
    # The kill of the Redis of shard b.
    for name in ("RingqShardDown", "RingqShardNotCounted", "RingqStoreErrors"):
        alerts.fired_and_ends(name, shard="b")
        alerts.never_fired_for_others(name, "shard", "b") if name != "RingqStoreErrors" else None
    first_event(alerts, load)
    waiting(alerts, load)
    full(alerts, stack, load)
    evicting(alerts, stack)
    unread(alerts, stack, load)
    clocks(alerts, stack)
    lost(alerts, stack)
    certificates(alerts, stack.apart["tls"])
    moved.drained(alerts)
    servers(alerts, stack, load)
    alerts.report.equal("each alert has fired and has ended", alerts.names - alerts.ended, set())


def waiting(alerts: Alerts, load) -> None:
    """A worker takes the topic that had none."""
    alerts.fires("RingqJobsWait", topic="backlog")
    load.spawn(load.stream, load.clients[0], "backlog", load.ack_all)
    alerts.fired_and_ends("RingqJobsWait", topic="backlog")


def first_event(alerts: Alerts, load) -> None:
    """The only job of a topic is dead before the topic is scraped, so its counter never rises in Prometheus."""
    from load import api

    queue = load.clients[0].queue
    queue.Enqueue(api.EnqueueRequest(job={"topic": "first"}), timeout=10)
    taken = queue.Pull(api.PullRequest(topics=["first"], max_jobs=1, wait={"seconds": 5}), timeout=10).deliveries
    dead = api.NackRequest(items=[{"receipt": each.receipt, "action": api.NACK_ACTION_DEAD_LETTER} for each in taken])
    alerts.report.equal("the job is dead", len(queue.Nack(dead, timeout=10).failures), 0)
    alerts.fires("RingqDeadJobsGrow", topic="first")


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


def unread(alerts: Alerts, stack, load) -> None:
    """The Redis of shard c accepts no new connection, and both servers lose the one by which they read."""
    from load import api

    redis = stack.redis["c"]

    def enqueue(prefix: str) -> list:
        """Enqueues jobs with ids that belong to all shards; returns those that shard c has stored."""
        jobs = [{"topic": "unread", "id": f"{prefix}-{number}", "delay": {"seconds": 3600}} for number in range(30)]
        results = load.clients[0].queue.BatchEnqueue(api.BatchEnqueueRequest(jobs=jobs), timeout=10).results
        return [result.id for result in results if result.shard == "c" and not result.HasField("error")]

    request = api.GetRequest(topic="unread", id=enqueue("before")[0])
    over = threading.Event()

    def read(client) -> None:
        while not over.wait(0.1):
            load.call(client, "Get", request)

    def reader(client, monitor: RedisConnection) -> str:
        """The address of the connection by which a server reads."""
        client.queue.Get(request, timeout=10)
        lines = iter(monitor.line, "")
        return next(found[1] for line in lines if request.id in line and (found := re.search(r"\[0 (\d[\d.]+:\d+)\]", line)))

    with RedisConnection(redis.port) as operator, RedisConnection(redis.port) as monitor:
        monitor.command("MONITOR")
        readers = [reader(client, monitor) for client in load.clients]
        operator.command("CONFIG", "SET", "maxclients", "1")
        for client, address in zip(load.clients, readers):
            operator.command("CLIENT", "KILL", "ADDR", address)
            load.spawn(read, client)
        alerts.fires("RingqShardRefusesReads", shard="c")
        alerts.report.check("the shard takes jobs meanwhile", bool(enqueue("meanwhile")))
        alerts.report.equal("the shard is in use meanwhile", alerts.value('ringq_shard_up{shard="c"}', min), 1)
        shard = load.shards()["c"]
        alerts.report.check("ringq shard list has the cause", "redis cannot be reached" in shard.last_error, shard)
        operator.command("CONFIG", "SET", "maxclients", "10000")
    alerts.fired_and_ends("RingqShardRefusesReads", shard="c")
    alerts.never_fired_for_others("RingqShardRefusesReads", "shard", "c")
    over.set()
    alerts.report.check("the job can be read again", load.clients[0].queue.Get(request, timeout=10).job.spec.id == request.id)


def clocks(alerts: Alerts, stack) -> None:
    """The clock of the Redis of shard g is half a minute ahead, and is corrected."""
    stack.clocked.set_ahead(30)
    alerts.fires("RingqClocksDiffer", shard="g")
    skew = alerts.value('ringq_shard_clock_skew_seconds{shard="g"}')
    alerts.report.check("the metric is the time by which the shard is ahead", 29.5 < skew < 30.5, skew)
    stack.clocked.set_ahead(0)
    alerts.fired_and_ends("RingqClocksDiffer", shard="g")
    alerts.never_fired_for_others("RingqClocksDiffer", "shard", "g")


def lost(alerts: Alerts, stack) -> None:
    """The Redis of shard g is flushed while its server runs."""
    server = stack.apart["clocks"]
    stack.clocked.command("FLUSHALL")
    alerts.fires("RingqShardLostData", shard="g")
    alerts.report.equal("the metric is the number of losses", alerts.value('ringq_shard_data_lost_total{shard="g"}'), 1)
    logged = re.search(r"the shard came back.*shard=g\b", server.log.read_text())
    alerts.report.check("the server logs what is gone", bool(logged), server.tail())
    alerts.fired_and_ends("RingqShardLostData", shard="g")
    alerts.never_fired_for_others("RingqShardLostData", "shard", "g")


def certificates(alerts: Alerts, server) -> None:
    """The certificate of a server has one day left and is renewed, first with a broken file; its identities and its file of
    topics have a mistake; and a client does not use TLS."""
    alerts.fires("RingqCertificateExpires", instance=server.instance, file="server")
    left = alerts.value("ringq_tls_certificate_expiry_seconds")
    alerts.report.check("the metric is the time that is left", 80_000 < left < 86_400, left)
    server.certificate.write_text("broken")
    server.write_identities("broken")
    alerts.fires("RingqTlsReloadFailed", instance=server.instance)
    alerts.fires("RingqIdentitiesNotRead", instance=server.instance)
    server.write_identities()
    alerts.fired_and_ends("RingqIdentitiesNotRead", instance=server.instance)
    # A priority is at most 9.
    server.write_topics(revision=2, priority=10)
    alerts.fires("RingqTopicsFileNotInForce", instance=server.instance)
    server.write_topics(revision=2)
    alerts.fired_and_ends("RingqTopicsFileNotInForce", instance=server.instance)
    server.renew(days=30)
    alerts.fired_and_ends("RingqTlsReloadFailed", instance=server.instance)
    alerts.fired_and_ends("RingqCertificateExpires", instance=server.instance, file="server")

    def connect() -> bool:
        with socket.create_connection(("127.0.0.1", server.grpc), timeout=5) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.recv(100)
        return alerts.firing("RingqTlsHandshakesFail", port="grpc", reason="plain_text")

    fired = wait_until(connect, FIRES_WITHIN)
    alerts.report.check("RingqTlsHandshakesFail fires", fired, alerts.prometheus.alerts())
    alerts.fired_and_ends("RingqTlsHandshakesFail", port="grpc", reason="plain_text")


class LeftOutShard:
    """Shard f leaves the list of its server with jobs. Then the step of the alert is done: its name is put back, and it is
    drained; its jobs are not due yet."""

    JOBS = 20

    def __init__(self, alerts: Alerts, stack) -> None:
        from load import Client, admin_api, api

        server = stack.apart["moved"]
        both = {name: stack.redis_apart[name] for name in ("e", "f")}
        self.client = Client("moved", f"127.0.0.1:{server.grpc}")
        # Ids of a client: only such jobs need the former ring. Their tombstones, by default of a minute, would need it, too.
        self.jobs = [f"moved-{number}" for number in range(self.JOBS)]
        jobs = [{"topic": "moved", "id": each, "delay": {"seconds": 3600}, "retention": {"seconds": 1}} for each in self.jobs]
        stored = self.client.queue.BatchEnqueue(api.BatchEnqueueRequest(jobs=jobs), timeout=10).results
        alerts.report.equal("both shards have jobs", {result.shard for result in stored}, set(both))
        alerts.report.equal("no former ring was open before", alerts.value('ringq_rings_open{job="apart"}', max), 1)
        self.restart(server, {"e": both["e"]})
        alerts.fires("RingqFormerRingOpen")
        logged = re.search(r"no replica has a shard.*shard=f\b", server.log.read_text())
        alerts.report.check("the server logs which shard is absent", bool(logged), server.tail())
        self.restart(server, both)
        drain = admin_api.SetShardStateRequest(name="f", state=admin_api.SHARD_STATE_DRAINING)
        self.client.admin.SetShardState(drain, timeout=10, wait_for_ready=True)
        self.since = time.monotonic()

    def restart(self, server, redis: dict) -> None:
        server.terminate()
        server.set_shards(redis)
        server.start()

    def drained(self, alerts: Alerts) -> None:
        """The jobs are made due and done. Until then the ring stays open for longer than the servers take to agree."""
        from load import api

        time.sleep(max(0.0, self.since + AGREEMENT + 2 * RELEASE_PAUSE - time.monotonic()))
        # Once a ring is closed it stays so: one that fires now has been open all the time.
        alerts.fires("RingqFormerRingOpen")
        for each in self.jobs:
            self.client.queue.Reschedule(api.RescheduleRequest(topic="moved", id=each, delay={}), timeout=10)
        pull = api.PullRequest(topics=["moved"], max_jobs=self.JOBS, wait={"seconds": 5})
        taken = self.client.queue.Pull(pull, timeout=10).deliveries
        alerts.report.equal("no job was lost", len(taken), self.JOBS)
        alerts.report.equal("a ring is open until they are done", alerts.value('ringq_rings_open{job="apart"}', max), 2)
        self.client.queue.Ack(api.AckRequest(items=[{"receipt": each.receipt} for each in taken]), timeout=10)
        alerts.fired_and_ends("RingqFormerRingOpen")
        closed = wait_until(lambda: alerts.prometheus.query('max(ringq_rings_open{job="apart"}) == 1'), 10)
        alerts.report.check("no former ring is open any more", closed)


def servers(alerts: Alerts, stack, load) -> None:
    """One server stops; then the load; another server has another list of shards; then both servers stop."""
    one, two = stack.servers.values()
    two.terminate()
    alerts.fires("RingqServerDown", instance=two.instance)
    two.start()
    alerts.fired_and_ends("RingqServerDown", instance=two.instance)
    load.stop()
    alerts.fired_and_ends("RingqDeadJobsGrow", topic="flaky")
    alerts.fired_and_ends("RingqDeadJobsGrow", topic="first")
    alerts.fired_and_ends("RingqLeasesRunOut", topic="hang")
    # A server that lacks a shard; it is not scraped, the others report it.
    third = stack.server("three", {name: redis for name, redis in stack.redis.items() if name != "b"})
    third.start()
    alerts.fires("RingqRingDisagreement")
    third.terminate()
    alerts.fired_and_ends("RingqRingDisagreement")
    for server in (one, two, *stack.apart.values()):
        server.terminate()
    alerts.fires("RingqNoMetrics")
    for server in (one, two):
        server.start()
    alerts.fired_and_ends("RingqNoMetrics")
