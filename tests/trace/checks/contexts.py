"""Which context a span of the server belongs to, and when there is none."""

import grpc

from client import Client, Context, api
from processes import SOON, Server, produce, work
from receiver import Collector, Span
from report import Failed, Report


def fence(collector: Collector, client: Client) -> None:
    """Waits for the span of a new call: those of earlier calls have arrived before it."""
    context = Context()
    client.enqueue("fence", context)
    collector.wait_for_spans("span of the last call", lambda span: span.trace == context.trace and span.kind == "SERVER")


def _deliver(collector: Collector, topic: str) -> Span:
    return collector.wait_for_spans(f"deliver {topic}", lambda span: span.name == f"deliver {topic}")[0]


def from_metadata(report: Report, collector: Collector, server: Server) -> None:
    """A caller sends its context with the call only."""
    client, context = Client(server), Context()
    client.enqueue("metadata", context)
    delivery = client.pull("metadata")
    client.ack(delivery)
    ours = collector.wait_for_spans("calls", lambda span: span.trace == context.trace and span.kind == "SERVER")
    report.equal("the trace has one call", [span.name for span in ours], ["ringq.v1.QueueService/Enqueue"])
    enqueue = ours[0]
    report.equal("Enqueue is a child of the caller's span", enqueue.parent, context.span)
    carried = delivery.headers["traceparent"].split("-")
    report.equal("a job without a context gets one of the caller's trace", (carried[1], carried[3]), (context.trace, "01"))
    deliver = _deliver(collector, "metadata")
    report.equal("its delivery is a child of that context", (deliver.trace, deliver.parent), (carried[1], carried[2]))
    known = {context.span, enqueue.id}
    report.check("it is the caller's span or that of Enqueue", carried[2] in known, f"{carried[2]} is not in {known}")


def own_context_wins(report: Report, collector: Collector, server: Server) -> None:
    """A job has a context of its own, which differs from that of the call."""
    client, caller, creation = Client(server), Context(), Context()
    client.enqueue("own", caller, headers={"traceparent": creation.traceparent})
    delivery = client.pull("own")
    client.ack(delivery)
    report.equal("the context of a job is not changed", delivery.headers["traceparent"], creation.traceparent)
    deliver = _deliver(collector, "own")
    report.equal("its delivery is a child of it", (deliver.trace, deliver.parent), (creation.trace, creation.span))
    (enqueue,) = collector.wait_for_spans("Enqueue", lambda span: span.parent == caller.span)
    report.equal("Enqueue is in the trace of the call", enqueue.trace, caller.trace)


def batch(report: Report, collector: Collector, server: Server) -> None:
    client, caller, creations = Client(server), Context(), [Context(), Context()]
    jobs = [{"topic": "batch", "headers": {"traceparent": one.traceparent}} for one in creations]
    client.queue.BatchEnqueue(api.BatchEnqueueRequest(jobs=jobs), metadata=caller.metadata(), timeout=10)
    deliveries = [client.pull("batch") for _ in creations]
    items = [{"receipt": delivery.receipt} for delivery in deliveries]
    client.queue.Ack(api.AckRequest(items=items), metadata=caller.metadata(), timeout=10)
    calls = collector.wait_for_spans("calls", lambda span: span.trace == caller.trace, 2)
    found = [(span.name.rsplit("/", 1)[1], span.attributes.get("messaging.batch.message_count")) for span in calls]
    report.equal("calls with several jobs have their number", found, [("BatchEnqueue", 2), ("Ack", 2)])
    delivers = collector.wait_for_spans("deliver batch", lambda span: span.name == "deliver batch", 2)
    expected = sorted((one.trace, one.span) for one in creations)
    found = sorted((one.trace, one.parent) for one in delivers)
    report.equal("each job of a batch is delivered in its own trace", found, expected)


def errors(report: Report, collector: Collector, server: Server) -> None:
    client, missing, bad = Client(server), Context(), Context()
    for request, context in ((api.GetRequest(topic="errors", id="none"), missing), (api.GetRequest(), bad)):
        try:
            client.queue.Get(request, metadata=context.metadata(), timeout=10)
            raise Failed("Get did not fail")
        except grpc.RpcError:
            pass
    for context, code in ((missing, "NOT_FOUND"), (bad, "INVALID_ARGUMENT")):
        (span,) = collector.wait_for_spans("Get", lambda span, trace=context.trace: span.trace == trace)
        found = span.attributes.get("rpc.status_code")
        report.equal(f"the span of a call that fails has its code {code}", found, code)
        # The conventions count only faults of the server as errors of its spans.
        report.equal(f"{code} is not an error of the server", span.status, "UNSET")


def unsampled(report: Report, collector: Collector, server: Server) -> None:
    """The producer's sampler leaves its trace out: server and worker follow it."""
    settings = SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    job = produce(server, "unsampled", "hello", settings | {"OTEL_TRACES_SAMPLER": "always_off"})
    work(server, "unsampled", "-parent", settings=settings)
    fence(collector, Client(server))
    ours = [span for span in collector.spans() if job in span.attributes.values() or span.name.endswith(" unsampled")]
    report.equal("an unsampled job has no spans", ours, [])


def malformed(report: Report, collector: Collector, server: Server) -> None:
    """Contexts that are none do not fail a call, and are passed on as they are in a job."""
    client = Client(server)
    values = ["", "00", "no context", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff-" + "1" * 32 + "-" + "1" * 16 + "-01"]
    for value in values:
        client.enqueue("malformed", metadata=[("traceparent", value)] if value else [], headers={"traceparent": value})
        delivery = client.pull("malformed")
        client.ack(delivery, metadata=[("traceparent", value)] if value else [])
        report.equal(f"a job keeps the traceparent {value!r}", delivery.headers["traceparent"], value)
    fence(collector, client)
    wrong = [span for span in collector.spans() if set(span.trace) <= {"0", "1"} or span.name == "deliver malformed"]
    report.equal("such a context has no spans", wrong, [])
