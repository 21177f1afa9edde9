"""Settings, connection, and what the error of a call means: for workers and producers."""
import logging
import os
import random
import socket
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode
from ringq.v1 import queue_service_pb2_grpc


def setting(name, default=""):
    return os.environ.get(f"RINGQ_{name}") or default


class Pauses:
    """Random pauses (full jitter) up to a bound that doubles; never quite 0, so that no loop spins."""
    def __init__(self, first, longest):
        self.first = self.bound = first
        self.longest = longest

    def next(self):
        pause = random.uniform(self.bound / 10, self.bound)
        self.bound = min(self.bound * 2, self.longest)
        return pause


REPEATABLE = (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED)


class CallFailed(Exception):
    """A failed call, with the reason and the delay (seconds) that the server gave."""
    def __init__(self, error):
        self.code, self.reason, self.delay = error.code(), "", 0.0
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        try:
            details = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
            for detail in status_pb2.Status.FromString(b"".join(details)).details:
                if detail.Unpack(info):
                    self.reason = info.reason
                elif detail.Unpack(retry):
                    self.delay = retry.retry_delay.ToNanoseconds() / 1e9
        except DecodeError:
            pass  # Not from ringq: an error without a reason.
        super().__init__(" ".join(filter(None, (self.code.name, self.reason, error.details()))))

    @property
    def repeatable(self):
        """An error without a reason comes from a library or a proxy: the outcome is unknown, whatever its code."""
        if not self.reason:
            return self.code is not StatusCode.UNIMPLEMENTED
        return self.code in REPEATABLE

    @property
    def unexplained(self):
        """Neither ringq nor an outage: one item may be the cause, as of a proxy that limits bodies."""
        return not self.reason and self.code not in REPEATABLE

    @property
    def of_an_item(self):
        """One item may be the cause; nothing was applied."""
        return bool(self.reason) and self.code in (StatusCode.INVALID_ARGUMENT, StatusCode.PERMISSION_DENIED)


class Client:
    """A channel to all servers; to be made inside the event loop."""
    def __init__(self):
        self.timeout = float(setting("CALL_TIMEOUT", "10"))
        token = setting("TOKEN").strip()  # A secret read from a file often ends with a newline.
        # Both for each call. A call waits for a connection, as a new one may be a moment away; its deadline ends that.
        self.options = {"metadata": [("authorization", f"Bearer {token}")] if token else [], "wait_for_ready": True}
        self.channel = open_channel(setting("SERVER", "127.0.0.1:7700").split(","), setting("CA"))
        self.stub = queue_service_pb2_grpc.QueueServiceStub(self.channel)

    async def call(self, method, request, timeout=None):
        try:
            return await getattr(self.stub, method)(request, timeout=timeout or self.timeout, **self.options)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(error) from None


def resolve(servers):
    """Addresses of the names that resolve: one wrong name must not stop what runs with the others."""
    addresses = []
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            addresses.append(f"{socket.gethostbyname(host)}:{port}")
        except (OSError, UnicodeError) as error:
            logging.getLogger("ringq").warning("%s is left out: %s", server, error)
    if not addresses:
        raise OSError(f"no address for any of {', '.join(servers)}")
    return addresses


def open_channel(servers, ca):
    options = [
        # A copy of deploy/service-config.json: round robin over the servers, with health checks.
        ("grpc.service_config", Path(__file__).with_name("stubs").joinpath("service-config.json").read_text()),
        ("grpc.max_receive_message_length", 16 << 20),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # Without it a dead connection is noticed only after 60 s more.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),  # gRPC adds up to 20 %; its default is two minutes.
        ("grpc.min_reconnect_backoff_ms", 5_000),  # In spite of its name: the time limit of an attempt to connect.
    ]
    target = f"dns:///{servers[0]}"
    if len(servers) > 1:  # gRPC takes a list of addresses only, and one name for all of them (also of the certificate).
        target = "ipv4:" + ",".join(resolve(servers))
        options.append(("grpc.default_authority", servers[0]))
    if not ca:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(Path(ca).read_bytes()), options)
