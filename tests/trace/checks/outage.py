"""The collector goes away, does not answer, and comes back."""

import contextlib
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from client import Client, Context
from checks.contexts import fence
from processes import SIGNALS, Server, free_address
from receiver import Collector, points
from report import Failed, Report, wait_for

SECONDS = 4.0
# A round of calls on a busy machine. One that waits for the collector takes OTEL_EXPORTER_OTLP_TIMEOUT, 3 s, or longer.
SLOWEST_CALLS = 2.0


def _calls(client: Client, seconds: float) -> tuple[int, float]:
    """Enqueues, takes and acks jobs in new traces. Returns their number and the time of the slowest round in seconds."""
    number, slowest, end = 0, 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        start, context = time.monotonic(), Context()
        client.enqueue("outage", context)
        client.ack(client.pull("outage", context.metadata()), context.metadata())
        number, slowest = number + 1, max(slowest, time.monotonic() - start)
    return number, slowest


def _warnings(server: Server, offset: int = 0) -> list[str]:
    return [line for line in server.log()[offset:].splitlines() if re.search(r"\b(WARN|ERROR)\b", line)]


def _signals(line: str) -> list[str]:
    return re.findall(r'\bsignal="?(\w+)', line)


def _too_often(server: Server) -> list[str]:
    """Returns the warnings that come less than a minute after one about the same signal."""
    last: dict[str, datetime] = {}
    wrong = []
    for line in _warnings(server):
        time_of_line = datetime.fromisoformat(line.split()[0].replace("Z", "+00:00"))
        for signal in _signals(line):
            if signal in last and time_of_line - last[signal] < timedelta(minutes=1):
                wrong.append(line)
            last[signal] = time_of_line
    return wrong


def away(report: Report, collector: Collector, server: Server) -> None:
    client, offset = Client(server), len(server.log())
    collector.stop()
    number, slowest = _calls(client, SECONDS)
    report.check(f"without a collector {number} jobs are enqueued, taken and acked", number > 20, number)
    report.check(f"the slowest takes {slowest:.2f} s", slowest < SLOWEST_CALLS)
    with contextlib.suppress(Failed):
        wait_for("warnings about traces and metrics", lambda: len(_warnings(server, offset)) >= 2)
    warnings = _warnings(server, offset)
    about = sorted(signal for line in warnings for signal in _signals(line))
    # Log records are few: no export of them may have failed.
    one_each = about in (["metrics", "traces"], ["logs", "metrics", "traces"])
    report.check("a signal whose exports fail has one warning", one_each and len(warnings) == len(about), "\n".join(warnings))
    report.check("they name the address", all(collector.address in line for line in warnings), "\n".join(warnings))
    collector.start()
    _arrives_again(report, collector, client, "after the collector is back")


def silent(report: Report, collector: Collector, server: Server) -> None:
    client = Client(server)
    collector.suspend()
    try:
        number, slowest = _calls(client, SECONDS)
    finally:
        collector.resume()
    report.check(f"beside a collector that does not answer {number} jobs are enqueued, taken and acked", number > 20, number)
    report.check(f"the slowest takes {slowest:.2f} s", slowest < SLOWEST_CALLS)
    _arrives_again(report, collector, client, "after the collector answers again")


def flapping(report: Report, collector: Collector, server: Server) -> None:
    """The collector restarts again and again."""
    client = Client(server)
    for _ in range(3):
        collector.stop()
        _calls(client, 1)
        collector.start()
        _arrives_again(report, collector, client, "after a restart")
    wrong = _too_often(server)
    report.check("a signal has one warning a minute at most", not wrong, "\n".join(wrong))


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
    late = ("OTEL_BSP_SCHEDULE_DELAY", "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_BLRP_SCHEDULE_DELAY")
    server, context = start(SIGNALS | dict.fromkeys(late, "60000"), "late"), Context()
    Client(server).enqueue("last", context)
    collector.flush()
    report.check("all signals wait for their intervals", "late" not in collector.services(), collector.services())
    server.stop()
    collector.flush()
    spans = [span.name for span in collector.spans() if span.trace == context.trace]
    report.equal("a server that ends sends its last spans", spans, ["ringq.v1.QueueService/Enqueue"])
    counted = collector.metrics("late").get("ringq_jobs_enqueued_total")
    found = [point["asDouble"] for point in points(counted) if point["asDouble"]] if counted else []
    report.equal("and its last metrics", found, [1.0])
    report.check("and its last log records", bool(collector.logs("late")))

    nowhere = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{free_address()}"}
    server = start(SIGNALS | nowhere)
    Client(server).enqueue("alone", Context())
    begin = time.monotonic()
    server.stop()
    took = time.monotonic() - begin
    report.check(f"a server without a collector ends in {took:.1f} s", took < 8, server.log())
    report.equal("its exit code is 0", server.process.returncode, 0)
