"""What each panel has to show: for each dashboard and title a function that compares it with the truth.

In the phase "down" shard b does not answer: its jobs are not counted, and calls that need it fail.
"""

import math
from collections.abc import Callable

EXPECTATIONS: dict[tuple[str, str], Callable] = {}
SHARDS = ["a", "b", "c"]
STORED = ("created", "replaced", "deferred", "rescheduled")


def expect(uid: str, *titles: str):
    def add(function: Callable) -> Callable:
        for title in titles:
            EXPECTATIONS[f"ringq-{uid}", title] = function
        return function

    return add


def counted(panel, topic: str) -> int:
    """Jobs of a topic without a worker on the shards that answer."""
    stored = panel.load.stored[topic]
    return sum(jobs for shard, jobs in stored.items() if not (panel.is_down and shard == "b"))


def positive(panel, shown: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in shown.items() if value > 0}


def quantiles_rise(panel, low: float, high: float) -> None:
    """p50, p95 and p99 are within bounds and in order."""
    values = [panel.number(query) for query in range(3)]
    panel.equal(values, sorted(values), "p50, p95, p99")
    for value in values:
        panel.within(value, low, high)


def instances(panel) -> set[str]:
    return {server.instance for server in panel.stack.servers.values()}


def dead_jobs(panel) -> None:
    """The gauge is up to 2 s old, and so is the scrape that has it on a busy machine; shard b, a third, may be absent."""
    dead = [panel.load.total("settled", "flaky", "dead", until=panel.at - age) for age in (4, 0)]
    panel.within(panel.number(), dead[0] * (0.4 if panel.is_down else 1) - 2, dead[1] + 2)


# ---- Overview: state

@expect("overview", "Servers")
def _(panel):
    panel.equal((panel.number(0), panel.number(1)), (2, 0), "up and down")


@expect("overview", "Shards down")
def _(panel):
    panel.equal(panel.number(), 1 if panel.is_down else 0)


@expect("overview", "Ready jobs")
def _(panel):
    # Beside the topic without a worker there are the few jobs that are on their way.
    panel.within(panel.number(), counted(panel, "backlog"), counted(panel, "backlog") + 60)


@expect("overview", "Oldest ready job")
def _(panel):
    panel.within(panel.number(), panel.at - panel.stack.loaded_at - 3, panel.at - panel.stack.loaded_at + 1)


@expect("overview", "Dead jobs")
def _(panel):
    dead_jobs(panel)


@expect("overview", "Alerts")
def _(panel):
    firing = [alert for alert in panel.stack.prometheus.alerts() if alert["state"] == "firing"]
    names = {alert["labels"]["alertname"] for alert in firing}
    # The value is a moment older.
    panel.near(panel.number(), len(firing), 0.4, 2)
    panel.equal("RingqShardDown" in names, panel.is_down, "RingqShardDown fires")


# ---- Overview: jobs

@expect("overview", "Jobs in and out")
def _(panel):
    panel.near(panel.number(0), sum(panel.rate("enqueued", None, outcome) for outcome in STORED), 0.2, what="enqueued")
    panel.near(panel.number(1), panel.rate("delivered", None, None), 0.2, what="delivered")
    panel.near(panel.number(2), panel.rate("settled", None, "succeeded"), 0.2, what="succeeded")
    panel.within(panel.number(0), 30, 200, "enqueued")


@expect("overview", "Enqueues by outcome")
def _(panel):
    shown = panel.shown[0]
    panel.equal(sorted(shown), sorted(["created", "replaced", "unchanged", "deferred", "rescheduled", "refused"]), "outcomes")
    panel.near(shown["created"], panel.rate("enqueued", None, "created"), 0.2)
    panel.near(shown["unchanged"], panel.rate("enqueued", None, "unchanged"), 0.3)
    panel.equal([shown["replaced"], shown["deferred"], shown["rescheduled"]], [0, 0, 0], "outcomes that the load does not cause")


@expect("overview", "Ends of leases by outcome")
def _(panel):
    shown = panel.shown[0]
    for outcome in ("succeeded", "retried", "released", "dead"):
        panel.near(shown[outcome], panel.rate("settled", None, outcome), 0.35, what=outcome)
    if not panel.is_down:
        panel.near(shown["lease_expired"], panel.rate("delivered", "hang", None), 0.6, 0.4, "lease_expired")
    panel.within(shown["orphaned"], 0, 1, "orphaned")


@expect("overview", "Jobs by state")
def _(panel):
    shown = panel.shown[0]
    panel.equal(sorted(shown), ["backoff", "dead", "ready", "running", "scheduled"], "states")
    panel.within(shown["ready"], counted(panel, "backlog"), counted(panel, "backlog") + 60, "ready")
    # Beside the topics of delayed jobs there are the released ones of the last second.
    delayed = counted(panel, "later") + counted(panel, "repeat")
    panel.within(shown["scheduled"], delayed, delayed + 15, "scheduled")


@expect("overview", "Ready jobs, ten largest topics")
def _(panel):
    panel.equal(panel.shown[0]["backlog"], counted(panel, "backlog"), "backlog")
    panel.equal(max(panel.shown[0], key=panel.shown[0].get), "backlog", "largest topic")
    panel.equal(sorted(panel.shown[0]), ["backlog", "flaky", "hang", "later", "mail", "repeat", "report"], "topics")


@expect("overview", "Oldest ready job, ten oldest topics")
def _(panel):
    age = panel.at - panel.stack.loaded_at
    panel.within(panel.shown[0]["backlog"], age - 3, age + 1, "backlog")
    panel.equal(panel.shown[0]["later"], 0, "later")
    panel.within(panel.shown[0]["mail"], 0, 5, "mail")


@expect("overview", "Wait until delivery")
def _(panel):
    # Retries are delivered at their due time; jobs of the shard that was down are late when it is back.
    quantiles_rise(panel, 0, 1 if panel.phase == "before" else 60)


@expect("overview", "Run time")
def _(panel):
    quantiles_rise(panel, 0, 5 if panel.phase == "before" else 60)


@expect("overview", "Streams and free credit")
def _(panel):
    panel.equal(panel.number(0), 3, "streams")
    panel.within(panel.number(1), 0, 150, "free credit")
    if panel.phase == "before":
        # A claim under way has all credit of its stream: seldom of two of the three at once.
        panel.within(panel.number(1), 40, 150, "free credit")


# ---- Overview: calls

@expect("overview", "Calls by method")
def _(panel):
    for method in ("BatchEnqueue", "Ack", "Nack"):
        panel.near(panel.shown[0][method], panel.rate("rpc", method, None), 0.25, 1, method)
    panel.near(panel.shown[0]["Enqueue"], 1, 0.3, what="Enqueue")


@expect("overview", "Duration of calls, p95")
def _(panel):
    panel.equal({"BatchEnqueue", "Ack", "Nack", "Enqueue"} <= set(panel.shown[0]), True, "methods")
    panel.equal({"Stream", "Pull"} & set(panel.shown[0]), set(), "methods that wait")
    for method in ("BatchEnqueue", "Ack"):
        panel.within(panel.shown[0][method], 0.0001, 10, method)


@expect("overview", "Calls that failed")
def _(panel):
    shown = panel.shown[0]
    panel.near(shown["Enqueue INVALID_ARGUMENT"], 1, 0.3, what="mistakes")
    failed = sum(value for name, value in shown.items() if not name.startswith(("Enqueue INVALID", "Pull CANCELLED", "Stream")))
    expected = sum(panel.rate("rpc", method, "UNAVAILABLE") for method in ("BatchEnqueue", "Ack", "Nack", "Pull"))
    panel.near(failed, expected, 0.3, 0.5, "other failures")
    if panel.phase == "before":
        panel.equal(failed, 0, "failures while all works")


# ---- Overview: shards and servers

@expect("overview", "Shards up")
def _(panel):
    panel.equal(panel.shown[0], {"a": 1, "b": 0 if panel.is_down else 1, "c": 1})


@expect("overview", "Duration of store calls, p95")
def _(panel):
    for shard in ("a", "c"):
        panel.within(panel.shown[0][shard], 0.0001, 5, shard)
    if not panel.is_down:
        panel.within(panel.shown[0]["b"], 0.0001, 10, "b")


@expect("overview", "Store errors")
def _(panel):
    shown = positive(panel, panel.shown[0])
    if panel.phase == "before":
        panel.equal(shown, {}, "errors")
    if panel.is_down:
        panel.equal(any(name.startswith("b ") for name in shown), True, f"errors of b in {shown}")
        panel.equal([name for name in shown if not name.startswith("b ")], [], "errors of other shards")


@expect("overview", "Store size")
def _(panel):
    panel.equal(sorted(panel.shown[0]), ["a", "c"] if panel.is_down else SHARDS, "shards")
    for shard, shown in panel.shown[0].items():
        panel.near(shown, panel.stack.redis[shard].info("used_memory"), 0.3, what=shard)


@expect("overview", "Store fullness")
def _(panel):
    panel.equal(sorted(panel.shown[0]), ["a", "c"] if panel.is_down else SHARDS, "shards")
    for shard, shown in panel.shown[0].items():
        panel.near(shown, panel.stack.redis[shard].info("used_memory") / 2**30, 0.3, 0, what=shard)


@expect("overview", "Ring")
def _(panel):
    panel.equal((panel.number(0), panel.number(1)), (1, 0), "rings open and disagreement")


@expect("overview", "Use by identity, ten largest", "Bytes by identity, ten largest", "Calls refused by quotas, and forged receipts",
        "Waiting jobs of namespaces with a quota", "Stored bytes of namespaces with a quota")
def _(panel):
    panel.equal([series for series in panel.shown if series], [], "the servers have no identities")


@expect("overview", "Processor time")
def _(panel):
    panel.equal(set(panel.shown[0]), instances(panel), "servers")
    for name, value in panel.shown[0].items():
        panel.within(value, 0.001, 4, name)


@expect("overview", "Memory")
def _(panel):
    panel.equal(set(panel.shown[0]), instances(panel), "servers")
    for server in panel.stack.servers.values():
        panel.near(panel.shown[0][server.instance], server.resident_bytes(), 0.2, what=server.name)


@expect("overview", "Open files")
def _(panel):
    panel.equal(set(panel.shown[0]), instances(panel), "servers")
    for name, value in panel.shown[0].items():
        panel.within(value, 1e-6, 0.5, name)


@expect("overview", "Lost log lines")
def _(panel):
    panel.equal(panel.shown[0], dict.fromkeys(instances(panel), 0.0))


@expect("overview", "Connections over a limit")
def _(panel):
    panel.equal(panel.shown[0], {}, "connections")


# ---- Topic

FLOWS = {"mail": "stream", "flaky": "stream", "report": "pull"}


def flows(panel) -> bool:
    return panel.value in FLOWS


@expect("topic", "Ready")
def _(panel):
    if panel.value == "backlog":
        panel.equal(panel.number(), counted(panel, "backlog"))
        panel.equal(panel.number(), panel.load.topic_stats("backlog").ready, "ready of GetTopicStats")
    else:
        panel.within(panel.number(), 0, 60)


@expect("topic", "Running")
def _(panel):
    panel.within(panel.number(), 0, 0 if panel.value == "backlog" else 150)


@expect("topic", "Later")
def _(panel):
    panel.within(panel.number(), 0, 0 if panel.value in ("mail", "report", "backlog") and panel.phase == "before" else 60)
    if panel.value == "flaky" and panel.phase == "before":
        panel.within(panel.number(), 1, 60)


@expect("topic", "Dead")
def _(panel):
    if panel.value == "flaky":
        dead_jobs(panel)
        panel.near(panel.number(), panel.load.topic_stats("flaky").dead, 0.05, 5, "dead of GetTopicStats")
    else:
        panel.equal(panel.number(), 0)


@expect("topic", "Oldest ready job")
def _(panel):
    age = panel.at - panel.stack.loaded_at
    if panel.value == "backlog":
        panel.within(panel.number(), age - 3, age + 1)
    else:
        panel.within(panel.number(), 0, 5)


@expect("topic", "Time to empty")
def _(panel):
    if flows(panel):
        panel.within(panel.number(), 0, 20)
    else:
        panel.equal(panel.shown[0], {}, "no job succeeds")


@expect("topic", "Jobs in and out")
def _(panel):
    topic = panel.value
    panel.near(panel.number(0), sum(panel.rate("enqueued", topic, outcome) for outcome in STORED), what="enqueued")
    panel.near(panel.number(1), panel.rate("delivered", topic, None), what="delivered")
    panel.near(panel.number(2), panel.rate("settled", topic, "succeeded"), what="succeeded")
    panel.within(panel.number(0), *((4, 150) if flows(panel) else (0, 0)), "enqueued")


@expect("topic", "Enqueues by outcome")
def _(panel):
    panel.near(panel.shown[0]["created"], panel.rate("enqueued", panel.value, "created"))
    panel.equal(len(panel.shown[0]), 6, "outcomes")


@expect("topic", "Deliveries by mode")
def _(panel):
    mode = FLOWS.get(panel.value)
    for each in ("stream", "pull"):
        panel.near(panel.shown[0][each], panel.rate("delivered", panel.value, each), what=each)
        if each != mode:
            panel.equal(panel.shown[0][each], 0, each)


@expect("topic", "Ends of leases by outcome")
def _(panel):
    for outcome in ("succeeded", "retried", "released", "dead"):
        panel.near(panel.shown[0][outcome], panel.rate("settled", panel.value, outcome), 0.35, what=outcome)
    if panel.value == "flaky":
        for outcome in ("retried", "released", "dead"):
            panel.within(panel.shown[0][outcome], 0.1, 20, outcome)


@expect("topic", "Failures")
def _(panel):
    if panel.value == "flaky":
        ends = {outcome: panel.rate("settled", "flaky", outcome) for outcome in ("succeeded", "retried", "released", "dead")}
        panel.near(panel.number(), (ends["retried"] + ends["dead"]) / sum(ends.values()), 0.25, 0.03)
    elif flows(panel):
        panel.within(panel.number(), 0, 0 if panel.phase == "before" else 0.2)
    else:
        panel.equal(panel.shown[0], {}, "no lease ends")


@expect("topic", "Jobs by state")
def _(panel):
    panel.equal(sorted(panel.shown[0]), ["backoff", "dead", "ready", "running", "scheduled"], "states")
    if panel.value == "backlog":
        panel.equal(positive(panel, panel.shown[0]), {"ready": counted(panel, "backlog")})


@expect("topic", "Wait until delivery")
def _(panel):
    if flows(panel):
        quantiles_rise(panel, 0, 2 if panel.phase == "before" else 60)
    else:
        panel.equal([math.isnan(panel.number(query)) for query in range(3)], [True] * 3, "no delivery")


@expect("topic", "Run time")
def _(panel):
    if panel.value == "report":
        # Buckets end at 0.25, 1 and 5 s.
        quantiles_rise(panel, 0.25, 1 if panel.phase == "before" else 60)
    elif flows(panel):
        quantiles_rise(panel, 0, 2 if panel.phase == "before" else 60)
    else:
        panel.equal([math.isnan(panel.number(query)) for query in range(3)], [True] * 3, "no settle")


@expect("topic", "Run time, all jobs")
def _(panel):
    shown = panel.shown[0]
    panel.equal(len(shown), 13, "buckets")
    rates = [shown[bound] for bound in sorted(shown, key=float)]
    panel.equal(rates, sorted(rates), "buckets are cumulative")
    settled = panel.load.rate(panel.at, 10, "settled", panel.value, None)
    panel.near(shown["+Inf"], settled, 0.35, 1.5, "all settles")
    if panel.value == "report" and panel.phase == "before":
        panel.within(shown["0.25"], 0, 0.1, "faster than the workers can be")


# ---- Shard

def hit(panel) -> bool:
    return panel.is_down and panel.value == "b"


@expect("shard", "Up")
def _(panel):
    panel.equal(panel.number(), 0 if hit(panel) else 1)
    # The server that is asked reports the same.
    panel.equal(bool(panel.load.shards()[panel.value].last_error), hit(panel), "ListShards has an error")


@expect("shard", "Counted")
def _(panel):
    panel.equal(panel.number(), 0 if hit(panel) else 1)


@expect("shard", "Refuses new jobs", "Refuses reads")
def _(panel):
    panel.equal(panel.number(), 0)


@expect("shard", "Size")
def _(panel):
    if hit(panel):
        panel.equal(panel.shown[0], {}, "no size while it is down")
    else:
        panel.near(panel.number(), panel.stack.redis[panel.value].info("used_memory"), 0.3)


@expect("shard", "Clock")
def _(panel):
    panel.within(panel.number(), 0, 0.5)


@expect("shard", "Calls by kind")
def _(panel):
    if hit(panel):
        panel.within(panel.shown[0].get("enqueue", 0), 0, 0.5, "enqueue")
        panel.within(panel.shown[0].get("settle", 0), 0, 0.5, "settle")
    else:
        for op in ("enqueue", "claim", "settle", "stats", "usage", "heartbeat"):
            panel.within(panel.shown[0][op], 0.1, 400, op)


@expect("shard", "Duration of calls")
def _(panel):
    if not hit(panel):
        quantiles_rise(panel, 0.00005, 10)


@expect("shard", "Duration of calls by kind, p95")
def _(panel):
    if not hit(panel):
        for op in ("enqueue", "claim", "settle"):
            panel.within(panel.shown[0][op], 0.0001, 10, op)


@expect("shard", "Errors")
def _(panel):
    shown = positive(panel, panel.shown[0])
    if hit(panel):
        reasons = {name.split()[1] for name in shown}
        panel.equal(bool(reasons & {"BREAKER_OPEN", "SHARD_UNAVAILABLE"}), True, f"reasons {reasons}")
    elif panel.value == "a" or panel.phase == "before":
        panel.equal(shown, {}, "errors")


@expect("shard", "Up, by server")
def _(panel):
    panel.equal(panel.shown[0], dict.fromkeys(instances(panel), 0 if hit(panel) else 1))


@expect("shard", "Openings of the circuit breaker")
def _(panel):
    panel.equal(set(panel.shown[0]), instances(panel), "servers")
    # Those of the kill are older than the window.
    if panel.value == "a" or panel.phase == "before":
        panel.equal(set(panel.shown[0].values()), {0.0}, "openings")


@expect("shard", "Losses of data")
def _(panel):
    panel.equal(panel.shown[0], dict.fromkeys(instances(panel), 0.0))


@expect("shard", "Size and limit")
def _(panel):
    if hit(panel):
        panel.equal(panel.shown, [{}, {}], "no size while it is down")
    else:
        panel.near(panel.number(0), panel.stack.redis[panel.value].info("used_memory"), 0.3, what="used")
        panel.equal(panel.number(1), 2**30, "maxmemory")


@expect("shard", "Fullness")
def _(panel):
    if hit(panel):
        panel.equal(panel.shown[0], {}, "no size while it is down")
    else:
        panel.near(panel.number(), panel.stack.redis[panel.value].info("used_memory") / 2**30, 0.3, 0)


@expect("shard", "Clock skew, by server")
def _(panel):
    panel.equal(set(panel.shown[0]), instances(panel), "servers")
    for name, value in panel.shown[0].items():
        panel.within(value, -0.5, 0.5, name)
