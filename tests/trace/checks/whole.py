"""One job from the producer in Python through the server to the worker in Go, with a retry."""

from processes import SOON, Server, produce, work
from receiver import Collector, Span
from report import Report


def _settings(collector: Collector) -> dict[str, str]:
    return SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}


def _tree(spans: list[Span]) -> list[tuple[str, str, str]]:
    """Returns label, kind and the parent's label of each span; `?` is a parent that is not among them."""
    labels = {span.id: span.label() for span in spans} | {"": ""}
    return sorted((span.label(), span.kind, labels.get(span.parent, "?")) for span in spans)


def _settles(topic: str, process_parent: str) -> list[tuple[str, str, str]]:
    process, nack, ack = f"worker: process {topic}", f"worker: nack {topic}", f"worker: ack {topic}"
    return [
        (f"{process} #1", "CONSUMER", process_parent),
        (f"{nack} #1", "CLIENT", f"{process} #1"),
        ("ringq: Nack", "SERVER", f"{nack} #1"),
        (f"{process} #2", "CONSUMER", process_parent),
        (f"{ack} #2", "CLIENT", f"{process} #2"),
        ("ringq: Ack", "SERVER", f"{ack} #2"),
    ]


def _sent(topic: str) -> list[tuple[str, str, str]]:
    send = f"producer: send {topic}"
    return [
        (send, "PRODUCER", ""),
        ("ringq: Enqueue", "SERVER", send),
        (f"ringq: deliver {topic} #1", "INTERNAL", send),
        (f"ringq: deliver {topic} #2", "INTERNAL", send),
    ]


def _lines(tree: list[tuple[str, str, str]]) -> str:
    return "\n".join(f"{label}, {kind}, under {parent or 'nothing'}" for label, kind, parent in sorted(tree))


def _compare(report: Report, text: str, spans: list[Span], expected: list[tuple[str, str, str]]) -> bool:
    found = _tree(spans)
    details = f"expected\n{_lines(expected)}\nfound\n{_lines(found)}"
    return report.check(text, found == sorted(expected), details)


def as_children(report: Report, collector: Collector, server: Server) -> None:
    """The worker makes its spans children of the producer's: all spans are one trace."""
    settings = _settings(collector)
    job = produce(server, "whole", "hello", settings)
    work(server, "whole", "-parent", settings=settings)
    (send,) = collector.wait_for_spans("send span", lambda span: span.name == "send whole")
    expected = _sent("whole") + _settles("whole", "producer: send whole")
    spans = collector.wait_for_spans("whole trace", lambda span: span.trace == send.trace, len(expected))
    order = "send, Enqueue, deliver, process, nack, Nack, deliver, process, ack, Ack"
    if not _compare(report, f"one trace has {order}", spans, expected):
        return
    by_label = {span.label(): span for span in spans}
    _check_times(report, by_label)
    _check_server_attributes(report, by_label, job)
    _check_worker(report, by_label, send)


def _check_times(report: Report, spans: dict[str, Span]) -> None:
    # A deliver span starts when the job was due and ends when it is handed over.
    names = ["producer: send whole", "ringq: Enqueue", "ringq: deliver whole #1", "worker: process whole #1",
             "worker: nack whole #1", "ringq: Nack", "ringq: deliver whole #2", "worker: process whole #2",
             "worker: ack whole #2", "ringq: Ack"]  # fmt: skip
    in_order = [spans[name] for name in names]
    begin = in_order[0].start
    table = "\n".join(f"{(s.start - begin) / 1e6:9.3f} to {(s.end - begin) / 1e6:9.3f} ms {s.label()}" for s in in_order)
    report.check("no span ends before it starts", all(span.start <= span.end for span in in_order), table)
    inside = [("ringq: Enqueue", "producer: send whole"), ("worker: nack whole #1", "worker: process whole #1"),
              ("ringq: Nack", "worker: nack whole #1"), ("worker: ack whole #2", "worker: process whole #2"),
              ("ringq: Ack", "worker: ack whole #2")]  # fmt: skip
    pairs = [(spans[call], spans[caller]) for call, caller in inside]
    outside = [call.label() for call, caller in pairs if not caller.start <= call.start <= call.end <= caller.end]
    report.check("each call lies inside the span that made it", not outside, "\n".join(outside) + "\n" + table)
    for number in (1, 2):
        deliver, process = spans[f"ringq: deliver whole #{number}"], spans[f"worker: process whole #{number}"]
        report.check(f"delivery {number} ends before its process span starts", deliver.end <= process.start, table)
    wait = spans["ringq: deliver whole #2"].start - spans["ringq: Nack"].start
    report.check("the second delivery is due the retry's wait after the Nack", 0.5e9 < wait < 1.5e9, table)


def _check_server_attributes(report: Report, spans: dict[str, Span], job: str) -> None:
    for method in ("Enqueue", "Nack", "Ack"):
        span = spans[f"ringq: {method}"]
        name = f"ringq.v1.QueueService/{method}"
        expected = {"rpc.system.name": "grpc", "rpc.method": name, "rpc.status_code": "OK"}
        found = {key: span.attributes.get(key) for key in expected}
        report.equal(f"{method} has its method and status", found, expected)
        report.equal(f"{method} is named by its method", span.name, name)
        report.check(f"{method} is no error", span.status == "UNSET" and "error.type" not in span.attributes, span)
    enqueue = spans["ringq: Enqueue"].attributes
    found = [enqueue.get(f"messaging.{key}") for key in ("message.id", "destination.name", "destination.partition.id")]
    report.equal("Enqueue names the job, its topic and its shard", found, [job, "whole", "s0"])
    for number in (1, 2):
        span = spans[f"ringq: deliver whole #{number}"]
        expected = {
            "messaging.system": "ringq",
            "messaging.operation.name": "deliver",
            "messaging.destination.name": "whole",
            "messaging.destination.partition.id": "s0",
            "messaging.message.id": job,
            "messaging.message.body.size": len("hello"),
            "messaging.ringq.delivery": number,
            "messaging.ringq.attempt": number,
        }
        found = {name: span.attributes.get(name) for name in expected}
        report.equal(f"delivery {number} names the job and its numbers", found, expected)
        worker = span.attributes.get("messaging.client.id", "")
        report.check(f"delivery {number} names the worker", worker.startswith("go-"), span.attributes)


def _check_worker(report: Report, spans: dict[str, Span], send: Span) -> None:
    first, second = spans["worker: process whole #1"], spans["worker: process whole #2"]
    ended = [(span.status, span.events) for span in (first, second)]
    report.equal("the failed attempt is an error with its exception", ended[0], ("ERROR", ("work done", "exception")))
    report.equal("the second attempt is none", ended[1], ("UNSET", ("work done",)))
    for span in (first, second):
        report.equal(f"{span.label()} also links to the send span", span.links, ((send.trace, send.id),))


def as_links(report: Report, collector: Collector, server: Server) -> None:
    """The worker links its spans to the producer's: each attempt is a trace of its own."""
    settings = _settings(collector)
    job = produce(server, "links", "hello", settings)
    work(server, "links", settings=settings)
    (send,) = collector.wait_for_spans("send span", lambda span: span.name == "send links")
    spans = collector.wait_for_spans("producer's trace", lambda span: span.trace == send.trace, len(_sent("links")))
    _compare(report, "the producer's trace has send, Enqueue and both deliveries", spans, _sent("links"))
    processes = collector.wait_for_spans("process spans", lambda span: span.name == "process links", 2)
    report.equal("process spans link to the send span", [span.links for span in processes], [((send.trace, send.id),)] * 2)
    traces = {span.trace for span in processes}
    report.check("each process span begins a trace", len(traces | {send.trace}) == 3, processes)
    # Go sets a second flag, random, in the traceparent of these traces.
    spans = collector.wait_for_spans("settle spans", lambda span: span.trace in traces, 6)
    _compare(report, "their traces have the settles and the server's spans of them", spans, _settles("links", ""))
    ids = {span.attributes.get("messaging.message.id") for span in spans if span.service == "worker"}
    report.equal("process and settle spans name the job", ids, {job})
    streams = collector.wait_for_spans("Stream spans", lambda span: span.name == "ringq.v1.QueueService/Stream")
    found = {(span.kind, span.parent, span.attributes.get("rpc.status_code")) for span in streams}
    report.equal("each stream is a trace of its own", found, {("SERVER", "", "OK")})
