"""What OTEL_* variables and the setting choose. Each server has a service name of its own."""

from collections.abc import Callable

from client import Client, Context
from processes import OFF, SIGNALS, Server
from receiver import Collector, Span
from report import Report

Start = Callable[..., Server]


def _use(collector: Collector, server: Server, topic: str) -> Context:
    """Runs a job in a sampled trace and one in none. Returns the trace when the server has ended and all has come."""
    client, context = Client(server), Context()
    client.enqueue(topic, context, headers={"traceparent": context.traceparent})
    client.ack(client.pull(topic), context.metadata())
    client.enqueue(topic)
    client.ack(client.pull(topic))
    server.stop()
    collector.flush()
    return context


def _spans(collector: Collector, service: str) -> list[Span]:
    return [span for span in collector.spans() if span.service == service]


def _names(spans: list[Span]) -> list[str]:
    return sorted(span.name.rsplit("/", 1)[-1] for span in spans)


def ratio(report: Report, collector: Collector, start: Start) -> None:
    zero = {"OTEL_TRACES_SAMPLER_ARG": "0"}
    _use(collector, start(SIGNALS | zero | {"OTEL_TRACES_SAMPLER": "traceidratio"}, "ratio"), "ratio")
    report.equal("a ratio of 0 sends no span", _names(_spans(collector, "ratio")), [])
    both = bool(collector.metrics("ratio")), bool(collector.logs("ratio"))
    report.equal("it does send metrics and logs", both, (True, True))

    context = _use(collector, start(zero | {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, "by-parent"), "by-parent")
    spans = _spans(collector, "by-parent")
    expected = ["Ack", "Enqueue", "deliver by-parent"]
    report.equal("a ratio of 0 of new traces sends the spans of sampled callers", _names(spans), expected)
    report.equal("and no other", {span.trace for span in spans}, {context.trace})


def defaults(report: Report, collector: Collector, start: Start) -> None:
    context = _use(collector, start({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, "defaults"), "defaults")
    spans = _spans(collector, "defaults")
    roots = [span for span in spans if not span.parent]
    report.equal("by default a call without a context begins a trace", _names(roots), ["Ack", "Enqueue", "Pull", "Pull"])
    called = [span for span in spans if span.trace == context.trace]
    report.equal("and one with a context is in its trace", _names(called), ["Ack", "Enqueue", "deliver defaults"])
    both = collector.metrics("defaults"), collector.logs("defaults")
    report.equal("by default neither metrics nor logs are sent", both, ({}, []))


def off(report: Report, collector: Collector, start: Start) -> None:
    servers = {
        "OTEL_SDK_DISABLED=true": SIGNALS | {"OTEL_SDK_DISABLED": "true"},
        "OTEL_SDK_DISABLED=True": SIGNALS | {"OTEL_SDK_DISABLED": "True"},
        "a server whose setting is off": SIGNALS | OFF,
        "OTEL_TRACES_EXPORTER=none": {"OTEL_TRACES_EXPORTER": "none"},
    }
    for number, (name, settings) in enumerate(servers.items()):
        service = f"off-{number}"
        _use(collector, start(settings, service), "nothing")
        report.check(f"{name} sends nothing", service not in collector.text(), sorted(collector.services()))


def mistakes(report: Report, collector: Collector, start: Start) -> None:
    """Variables whose values are not understood are reported and not used."""
    wrong = {"OTEL_TRACES_SAMPLER": "alwayson", "OTEL_EXPORTER_OTLP_COMPRESSION": "zip", "OTEL_BSP_SCHEDULE_DELAY": "1s"}
    secret = {"OTEL_EXPORTER_OTLP_HEADERS": "planted-headers-9f27"}
    server = start(wrong | secret, "mistakes")
    _use(collector, server, "mistakes")
    warnings = [line for line in server.log().splitlines() if " WARN " in line]
    for name, value in wrong.items():
        report.check(f"{name}={value} is reported", any(f"{name}={value}" in line for line in warnings), "\n".join(warnings))
    report.check("headers are not logged", "planted-headers" not in server.log(), server.log())
    report.check("the spans are sent all the same", bool(_spans(collector, "mistakes")))

    server = start({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}, "no-scheme")
    server.stop()
    warned = any("http://" in line and collector.address in line for line in server.log().splitlines() if " WARN " in line)
    report.check("an endpoint without a scheme is reported", warned, server.log())
