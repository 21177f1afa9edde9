"""Enqueues a job in a `send TOPIC` span, whose context goes with the job to its worker. Usage: producer.py TOPIC TEXT

The server is at RINGQ_SERVER, default 127.0.0.1:7700; a token in RINGQ_TOKEN goes with the call. OTEL_* variables say
where the span goes. Prints the id of the job.
"""
import os
import sys
import uuid

import grpc
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ringq.v1 import queue_service_pb2 as api
from ringq.v1 import queue_service_pb2_grpc

tracer = trace.get_tracer("ringq/examples/tracing")
token = os.environ.get("RINGQ_TOKEN")


def send(queue, topic, text):
    """Enqueues a job and returns its id. The call is safe to repeat with the same request_id."""
    attributes = {
        "messaging.system": "ringq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    # A call that fails is recorded as an error of the span.
    with tracer.start_as_current_span(f"send {topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes) as span:
        context = {}
        propagate.inject(context)  # traceparent, and tracestate and baggage if there are any
        request = api.EnqueueRequest(
            job={"topic": topic, "payload": {"text": text}, "headers": context}, request_id=str(uuid.uuid4())
        )
        # The job's headers reach the worker; the metadata make the server's span of this call a child of ours.
        metadata = context | ({"authorization": f"Bearer {token}"} if token else {})
        answer = queue.Enqueue(request, metadata=tuple(metadata.items()), timeout=10)
        span.set_attribute("messaging.message.id", answer.id)
        return answer.id


def main(topic, text):
    provider = TracerProvider()  # Reads OTEL_SERVICE_NAME and OTEL_TRACES_SAMPLER; the processor, OTEL_BSP_*.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # Reads OTEL_EXPORTER_OTLP_*.
    trace.set_tracer_provider(provider)
    with grpc.insecure_channel(os.environ.get("RINGQ_SERVER", "127.0.0.1:7700")) as channel:
        print(send(queue_service_pb2_grpc.QueueServiceStub(channel), topic, text))
    provider.shutdown()  # Sends the last spans.


if __name__ == "__main__":
    main(*sys.argv[1:3]) if len(sys.argv) == 3 else sys.exit(__doc__)
