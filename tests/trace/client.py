"""Calls of a program without an OpenTelemetry SDK, in traces that the suite makes up."""

import os
import sys

import grpc

from processes import TOOLS, Server

sys.path.insert(0, str(TOOLS / "stubs"))

from ringq.v1 import queue_service_pb2 as api  # noqa: E402
from ringq.v1 import queue_service_pb2_grpc  # noqa: E402


class Context:
    """A trace and a span in it, as a caller has them."""

    def __init__(self, flags: str = "01") -> None:
        self.trace = os.urandom(16).hex()
        self.span = os.urandom(8).hex()
        self.traceparent = f"00-{self.trace}-{self.span}-{flags}"

    def metadata(self) -> list[tuple[str, str]]:
        return [("traceparent", self.traceparent)]


class Client:
    def __init__(self, server: Server) -> None:
        self.queue = queue_service_pb2_grpc.QueueServiceStub(grpc.insecure_channel(server.address))

    def enqueue(self, topic: str, context: Context | None = None, metadata: list = (), **job: object) -> str:
        metadata = [*metadata, *(context.metadata() if context else [])]
        request = api.EnqueueRequest(job={"topic": topic, **job})
        return self.queue.Enqueue(request, metadata=metadata, timeout=10).id

    def pull(self, topic: str, metadata: list = ()) -> api.Delivery:
        request = api.PullRequest(topics=[topic], max_jobs=1, wait={"seconds": 5})
        (delivery,) = self.queue.Pull(request, metadata=metadata, timeout=10).deliveries
        return delivery

    def ack(self, delivery: api.Delivery, metadata: list = (), **item: object) -> None:
        items = [{"receipt": delivery.receipt, **item}]
        assert not self.queue.Ack(api.AckRequest(items=items), metadata=metadata, timeout=10).failures
