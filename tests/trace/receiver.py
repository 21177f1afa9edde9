"""The OpenTelemetry Collector as a process, and what it has received."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from processes import TOOLS, end, free_address
from report import Failed, wait_for

# Kinds of spans by their numbers in OTLP.
KINDS = ["UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
STATUSES = ["UNSET", "OK", "ERROR"]


@dataclass(frozen=True)
class Span:
    """A span with the parts of OTLP that the suite looks at. Times are nanoseconds since 1970."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    status: str
    attributes: dict = field(hash=False)
    events: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    resource: dict = field(hash=False)

    def label(self) -> str:
        """Returns the name without the package of a method, and the delivery number where there is one."""
        number = self.attributes.get("messaging.ringq.delivery")
        name = self.name.rsplit("/", 1)[-1]
        return f"{self.service}: {name}" + (f" #{number}" if number else "")


class Collector:
    def __init__(self, directory: Path) -> None:
        self.address = free_address()
        self.endpoint = f"http://{self.address}"
        self.files = directory / "received"
        self.files.mkdir()
        self.log = directory / "collector.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        read = self.log.stat().st_size if self.log.exists() else 0
        environment = {"OTLP_ADDRESS": self.address, "OTLP_FILES": str(self.files), "PATH": os.environ["PATH"]}
        config = Path(__file__).parent / "collector/config.yaml"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [TOOLS / "collector", "--config", config], env=environment, stdout=log, stderr=log
            )
        wait_for("collector", lambda: self._is_ready(read))

    def _is_ready(self, offset: int) -> bool:
        text = self.log.read_text()[offset:]
        if self.process.poll() is not None:
            raise Failed(f"the collector ended:\n{text}")
        return "Everything is ready" in text

    def stop(self) -> None:
        """Ends it; all that it received is then in its files."""
        end(self.process)
        self.process = None

    def flush(self) -> None:
        """Writes all that it received into its files: it does so by itself 50 ms later."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def text(self) -> str:
        return "".join(path.read_text() for path in sorted(self.files.iterdir()))

    def _messages(self, signal_name: str) -> list[dict]:
        path = self.files / f"{signal_name}.jsonl"
        if not path.exists():
            return []
        # The last line may be incomplete.
        return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]

    def spans(self) -> list[Span]:
        return [
            _span(resource, span)
            for message in self._messages("traces")
            for resource in message["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def wait_for_spans(self, what: str, wanted: Callable[[Span], bool], count: int = 1, seconds: float = 10) -> list[Span]:
        """Returns the matching spans once there are `count`, by their start. Fails, with those that came, if they do not."""

        def found() -> list[Span]:
            spans = [span for span in self.spans() if wanted(span)]
            return spans if len(spans) >= count else []

        try:
            return sorted(wait_for(what, found, seconds), key=lambda span: span.start)
        except Failed as error:
            lines = "\n".join(f"{span.kind} {span.label()} trace {span.trace}" for span in self.spans() if wanted(span))
            raise Failed(f"{error} ({count} wanted); what came:\n{lines}") from None

    def metrics(self, service: str) -> dict[str, dict]:
        """Returns the newest state of each metric of a service, with its resource under `resource`."""
        found = {}
        for message in self._messages("metrics"):
            for resource in message["resourceMetrics"]:
                values = _values(resource["resource"])
                if values.get("service.name") == service:
                    for scope in resource["scopeMetrics"]:
                        for metric in scope["metrics"]:
                            found[metric["name"]] = metric | {"resource": values}
        return found

    def logs(self, service: str) -> list[dict]:
        """Returns the log records of a service, with its resource under `resource`."""
        return [
            record | {"resource": values}
            for message in self._messages("logs")
            for resource in message["resourceLogs"]
            if (values := _values(resource["resource"])).get("service.name") == service
            for scope in resource["scopeLogs"]
            for record in scope["logRecords"]
        ]

    def services(self) -> set[str]:
        return set(re.findall(r'"service\.name","value":\{"stringValue":"([^"]*)"', self.text()))


def points(metric: dict) -> list[dict]:
    """Returns the data points of a metric, whatever its type, with their attributes as a dict."""
    data = next(metric[kind] for kind in ("sum", "gauge", "histogram", "summary", "exponentialHistogram") if kind in metric)
    return [point | {"attributes": _values(point)} for point in data.get("dataPoints", [])]


def _span(resource: dict, span: dict) -> Span:
    values = _values(resource["resource"])
    return Span(
        service=values.get("service.name", ""),
        name=span["name"],
        kind=KINDS[span.get("kind", 0)],
        trace=span["traceId"],
        id=span["spanId"],
        parent=span.get("parentSpanId", ""),
        start=int(span["startTimeUnixNano"]),
        end=int(span["endTimeUnixNano"]),
        status=STATUSES[span.get("status", {}).get("code", 0)],
        attributes=_values(span),
        events=tuple(event["name"] for event in span.get("events", [])),
        links=tuple((link["traceId"], link["spanId"]) for link in span.get("links", [])),
        resource=values,
    )


def _values(holder: dict) -> dict:
    """Returns attributes as a dict of strings, numbers and booleans."""
    return {one["key"]: _value(one["value"]) for one in holder.get("attributes", [])}


def _value(value: dict) -> object:
    ((kind, content),) = value.items() if value else (("none", None),)
    if kind == "arrayValue":
        return [_value(one) for one in content.get("values", [])]
    return int(content) if kind == "intValue" else content
