"""Metrics and logs beside traces, the resource of all three, and what is in none of them."""

import base64
import contextlib
import math
import re
import urllib.request

from client import Client, Context, api
from checks.contexts import fence
from processes import Server
from receiver import Collector, points
from report import Failed, Report, wait_for

# What the server has to send to the collector itself.
EXPORT_TOKEN = "planted-export-token-9f27"


def resource(report: Report, collector: Collector, server: Server) -> None:
    fence(collector, Client(server))
    metrics = wait_for("metrics", lambda: collector.metrics("ringq"))
    logs = wait_for("logs", lambda: collector.logs("ringq"))
    kinds = {
        "spans": [span.resource for span in collector.spans() if span.service == "ringq"],
        "metrics": [metric["resource"] for metric in metrics.values()],
        "logs": [record["resource"] for record in logs],
    }
    version = _metrics_page(server)["ringq_build_info"][0][0]["version"]
    instances = set()
    for kind, resources in kinds.items():
        keys = "service.name", "service.version", "deployment.environment.name"
        names = {tuple(one.get(key) for key in keys) for one in resources}
        report.equal(f"{kind} have name, version and OTEL_RESOURCE_ATTRIBUTES", names, {("ringq", version, "test")})
        instances |= {one.get("service.instance.id", "") for one in resources}
    report.check("all three have the same service.instance.id", len(instances) == 1 and "" not in instances, instances)


def metrics(report: Report, collector: Collector, server: Server) -> None:
    """The metrics that are sent are those of /metrics, with the same values."""
    client = Client(server)
    for _ in range(3):
        client.enqueue("counted")
    for _ in range(2):
        client.ack(client.pull("counted"))

    def settled() -> bool:
        return _differences(collector, server) == []

    with contextlib.suppress(Failed):
        wait_for("equal metrics", settled)
    differences = _differences(collector, server)
    report.check("counters, gauges and histograms are those of /metrics", not differences, "\n".join(differences))
    enqueued = [metric for name, metric in collector.metrics("ringq").items() if name.startswith("ringq_jobs_enqueued")]
    sums = [metric for metric in enqueued if "sum" in metric]
    found = [point for metric in sums for point in points(metric) if point["attributes"].get("topic") == "counted"]
    total = sum(float(point.get("asInt", point.get("asDouble", 0))) for point in found)
    report.equal("three jobs of a topic are counted", total, 3.0)
    monotonic = all(metric["sum"].get("isMonotonic") and metric["sum"].get("aggregationTemporality") == 2 for metric in sums)
    report.check("counters are cumulative and monotonic", bool(sums) and monotonic, sums)


def _differences(collector: Collector, server: Server) -> list[str]:
    """Returns what /metrics has for the topic `counted` that the newest metrics do not have: counters, gauges, histograms."""
    sent = {}
    for name, metric in collector.metrics("ringq").items():
        for point in points(metric):
            labels = tuple(sorted(point["attributes"].items()))
            if "count" in point:
                sent[f"{name}_count", labels] = float(point["count"])
                sent[f"{name}_sum", labels] = float(point.get("sum", 0))
            else:
                sent[name.removesuffix("_total"), labels] = float(point.get("asInt", point.get("asDouble", 0)))
    wrong = []
    for name, samples in _metrics_page(server).items():
        for labels, value in samples:
            # Ages grow between the two.
            if labels.get("topic") == "counted" and not re.search("_bucket$|age_seconds$", name):
                key = name.removesuffix("_total"), tuple(sorted(labels.items()))
                if key not in sent or not math.isclose(sent[key], value):
                    wrong.append(f"{name} {labels}: {value} on /metrics, {sent.get(key)} sent")
    return wrong


def _metrics_page(server: Server) -> dict[str, list[tuple[dict, float]]]:
    with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    page: dict[str, list[tuple[dict, float]]] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
            name, labels, value = match.groups()
            page.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value)))
    return page


def logs(report: Report, collector: Collector, server: Server) -> None:
    """The records that are sent are the lines of the log."""
    records = collector.logs("ringq")
    bodies = [record.get("body", {}).get("stringValue", "") for record in records]
    missing = [body for body in bodies if body and body not in server.log()]
    report.check("the log has each record that is sent", bool(bodies) and not missing, f"{missing} of {bodies}")
    complete = [record.get("severityNumber") and record.get("observedTimeUnixNano") for record in records]
    report.check("log records have a severity and a time", all(complete), records)


def secrets(report: Report, collector: Collector, server: Server) -> None:
    """No part of a job that its owner wrote is in a span, metric or log, but for its names."""
    client, context = Client(server), Context()
    kinds = ["payload", "header", "header-name", "token", "result", "checkpoint", "progress", "error"]
    secret = {kind: f"planted-{kind}-9f27" for kind in kinds}
    with_token = [*context.metadata(), ("authorization", f"Bearer {secret['token']}"), ("x-api-key", secret["token"])]
    headers = {"traceparent": context.traceparent, "authorization": secret["header"], secret["header-name"]: "1"}
    client.enqueue("secrets", metadata=with_token, payload={"text": secret["payload"]}, headers=headers)
    client.enqueue("secrets", metadata=with_token, payload={"data": secret["payload"].encode()}, headers=headers)
    first = client.pull("secrets", with_token)
    extend = {"receipt": first.receipt, "progress": secret["progress"], "checkpoint": {"text": secret["checkpoint"]}}
    client.queue.Extend(api.ExtendRequest(items=[extend]), metadata=with_token, timeout=10)
    nack = {"receipt": first.receipt, "error": secret["error"], "action": api.NACK_ACTION_DEAD_LETTER}
    client.queue.Nack(api.NackRequest(items=[nack]), metadata=with_token, timeout=10)
    client.ack(client.pull("secrets", with_token), with_token, result={"text": secret["result"]})
    before = len(collector.metrics("ringq"))
    fence(collector, client)
    wait_for("metrics", lambda: len(collector.metrics("ringq")) >= before)
    names = {span.name.rsplit("/", 1)[-1] for span in collector.spans() if span.trace == context.trace}
    report.equal("the calls are traced", names, {"Enqueue", "Pull", "Extend", "Nack", "Ack", "deliver secrets"})
    received, log = collector.text(), server.log()
    for kind, value in secret.items():
        forms = [value, base64.b64encode(value.encode()).decode().rstrip("="), value.encode().hex()]
        report.check(f"no {kind} is sent", not any(form in received for form in forms), value)
        report.check(f"no {kind} is logged", value not in log, value)
    report.check("no receipt is sent", first.receipt not in received, first.receipt)
    report.check("the token for the collector is not sent in records", EXPORT_TOKEN not in received)
    report.check("the token for the collector is not logged", EXPORT_TOKEN not in log)
