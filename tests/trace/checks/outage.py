"""The collector goes away, does not answer, and comes back."""

import re
import time
from collections.abc import Callable

from client import Client, Context
from checks.contexts import fence
from processes import SIGNALS, Server, free_address
from receiver import Collector
from report import Report, wait_for

SECONDS = 4.0
# A call on a busy machine; what waits for the collector takes OTEL_EXPORTER_OTLP_TIMEOUT, 1 s, or longer.
SLOWEST_CALL = 0.7


def _calls(client: Client, seconds: float) -> tuple[int, float]:
    """Enqueues, takes and acks jobs in new traces. Returns their number and the time of the slowest round in seconds."""
    number, slowest, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        start, context = time.monotonic(), Context()
        client.enqueue("outage", context)
        client.ack(client.pull("outage", context.metadata()), context.metadata())
        number, slowest = number + 1, max(slowest, time.monotonic() - start)
    return number, slowest


def _warnings(server: Server, offset: int) -> list[str]:
    return [line for line in server.log()[offset:].splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]


def away(report: Report, collector: Collector, server: Server) -> None:
    client, offset = Client(server), len(server.log())
    collector.stop()
    number, slowest = _calls(client, SECONDS)
    report.check(f"without a collector {number} jobs are enqueued, taken and acked", number > 20, number)
    report.check(f"the slowest takes {slowest:.2f} s", slowest < SLOWEST_CALL)
    wait_for("warnings about three signals", lambda: len(_warnings(server, offset)) >= 3)
    warnings = _warnings(server, offset)
    counts = {signal: sum(f'"{signal}"' in line for line in warnings) for signal in ("traces", "metrics", "logs")}
    report.check("each signal has one warning", set(counts.values()) == {1} and len(warnings) == 3, "\n".join(warnings))
    report.check("they name the address", all(collector.address in line for line in warnings), "\n".join(warnings))
    collector.start()
    _arrives_again(report, collector, client, "after the collector is back")


def silent(report: Report, collector: Collector, server: Server) -> None:
    client, offset = Client(server), len(server.log())
    collector.suspend()
    try:
        number, slowest = _calls(client, SECONDS)
    finally:
        collector.resume()
    report.check(f"beside a collector that does not answer {number} jobs are enqueued, taken and acked", number > 20, number)
    report.check(f"the slowest takes {slowest:.2f} s", slowest < SLOWEST_CALL)
    warnings = _warnings(server, offset)
    report.check("it is not reported again within a minute", len(warnings) <= 1, "\n".join(warnings))
    _arrives_again(report, collector, client, "after the collector answers again")


def _arrives_again(report: Report, collector: Collector, client: Client, when: str) -> None:
    start, context = time.monotonic(), Context()

    def arrived() -> bool:
        client.enqueue("outage", context)
        return any(span.trace == context.trace for span in collector.spans())

    wait_for(f"span {when}", arrived, 30)
    report.check(f"spans arrive {when}, after {time.monotonic() - start:.1f} s", True)
    fence(collector, client)


def ending(report: Report, collector: Collector, start: Callable[..., Server]) -> None:
    """A server that ends sends what it has, however long it would have waited, and does not wait for ever."""
    server, context = start({"OTEL_BSP_SCHEDULE_DELAY": "60000"}), Context()
    Client(server).enqueue("last", context)
    sent = [span for span in collector.spans() if span.trace == context.trace]
    report.equal("spans wait for OTEL_BSP_SCHEDULE_DELAY", sent, [])
    server.stop()
    collector.wait_for_spans("last span", lambda span: span.trace == context.trace, seconds=2)
    report.check("a server that ends sends its last spans", True)

    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{free_address()}"}
    server = start(SIGNALS | nowhere)
    Client(server).enqueue("alone", Context())
    begin = time.monotonic()
    server.stop()
    took = time.monotonic() - begin
    report.check(f"a server without a collector ends in {took:.1f} s", took < 8, server.log())
    report.equal("its exit code is 0", server.process.returncode, 0)
