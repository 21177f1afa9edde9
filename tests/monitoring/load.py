"""The load: producers and workers whose every call is counted, so that panels can be compared with the truth."""

import collections
import math
import threading
import time

import grpc
from ringq.v1 import admin_service_pb2_grpc, queue_service_pb2 as api, queue_service_pb2_grpc, topic_service_pb2_grpc
from ringq.v1 import admin_service_pb2 as admin_api, topic_service_pb2 as topic_api

# Topics without a worker, and how many jobs each holds from the start.
BACKLOG, LATER = 300, 40
# Topic whose jobs a worker takes and never settles, and the lease.
HANG_LEASE = 1.0
# Run time of the jobs of "report", in seconds.
REPORT_RUN = 0.3
OUTCOMES = {api.ENQUEUE_OUTCOME_CREATED: "created", api.ENQUEUE_OUTCOME_REPLACED: "replaced",
            api.ENQUEUE_OUTCOME_UNCHANGED: "unchanged", api.ENQUEUE_OUTCOME_DEFERRED: "deferred",
            api.ENQUEUE_OUTCOME_RESCHEDULED: "rescheduled"}
# Codes that a killed Redis may cause.
OF_AN_OUTAGE = {grpc.StatusCode.UNAVAILABLE}


class Client:
    """Stubs of one server."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.channel = grpc.insecure_channel(address)
        self.queue = queue_service_pb2_grpc.QueueServiceStub(self.channel)
        self.topics = topic_service_pb2_grpc.TopicServiceStub(self.channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)


class Load:
    def __init__(self, stack) -> None:
        self.stack = stack
        self.clients = [Client(name, f"127.0.0.1:{server.grpc}") for name, server in stack.servers.items()]
        self.stopped, self.filled = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.lock = threading.Lock()
        # What happened: kind, names -> times and numbers.
        self.events: dict[tuple, collections.deque] = collections.defaultdict(collections.deque)
        self.surprises: list[str] = []
        # Jobs of topics without a worker, by shard.
        self.stored: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        self.number = 0
        self.streams: list = []
        # Codes that a step of the scenario causes on purpose.
        self.allowed: set = set()

    # ---- Truth

    def count(self, *key: str, n: int = 1) -> None:
        with self.lock:
            self.events[key].append((time.time(), n))

    def rate(self, end: float, seconds: float, *key: str | None) -> float:
        """Events per second within a window; None in the key is any name."""
        with self.lock:
            chosen = [events for other, events in self.events.items()
                      if len(other) == len(key) and all(part in (None, name) for part, name in zip(key, other))]
            return sum(n for events in chosen for at, n in events if end - seconds < at <= end) / seconds

    def total(self, *key: str, until: float = math.inf) -> int:
        with self.lock:
            return sum(n for at, n in self.events.get(key, ()) if at <= until)

    def topic_stats(self, topic: str):
        return self.clients[0].topics.GetTopicStats(topic_api.GetTopicStatsRequest(name=topic), timeout=5).stats

    def shards(self) -> dict:
        answer = self.clients[0].admin.ListShards(admin_api.ListShardsRequest(), timeout=10)
        return {shard.name: shard for shard in answer.shards}

    # ---- Calls

    def call(self, client: Client, method: str, request, timeout: float = 10, quiet: bool = False):
        """Calls a method of the queue service and counts it by its code; returns None if it failed."""
        try:
            answer = getattr(client.queue, method)(request, timeout=timeout)
        except grpc.RpcError as error:
            if self.stopped.is_set() and error.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE):
                return None
            self.count("rpc", method, error.code().name)
            if not quiet and error.code() not in OF_AN_OUTAGE | self.allowed:
                self.surprises.append(f"{method}: {error.code().name} {error.details()}")
            return None
        self.count("rpc", method, "OK")
        return answer

    def enqueue(self, jobs: list[dict], client: Client | None = None, keep: bool = False) -> int:
        """Enqueues jobs, and counts their outcomes. Returns how many are stored."""
        self.number += 1
        client = client or self.clients[self.number % len(self.clients)]
        answer = self.call(client, "BatchEnqueue", api.BatchEnqueueRequest(jobs=jobs))
        stored = 0
        for job, result in zip(jobs, answer.results if answer else []):
            outcome = OUTCOMES.get(result.outcome) if not result.HasField("error") else "refused"
            self.count("enqueued", job["topic"], outcome)
            if outcome == "created":
                stored += 1
                if keep:
                    with self.lock:
                        self.stored[job["topic"]][result.shard] += 1
        return stored

    def settle(self, client: Client, topic: str, receipts: list[str], action=None, outcome: str = "succeeded", delay=None) -> None:
        if not receipts:
            return
        if action is None:
            answer = self.call(client, "Ack", api.AckRequest(items=[{"receipt": receipt} for receipt in receipts]))
        else:
            more = {"delay": {"seconds": delay}} if delay else {}
            items = [{"receipt": receipt, "action": action, "error": "of the load", **more} for receipt in receipts]
            answer = self.call(client, "Nack", api.NackRequest(items=items))
        if answer is not None:
            failed = [each for each in answer.failures if each.error == api.SETTLE_ERROR_UNAVAILABLE]
            self.count("settled", topic, outcome, n=len(receipts) - len(answer.failures))
            if failed:
                self.spawn(self.settle_again, client, topic, [each.receipt for each in failed], action, outcome, delay)

    def settle_again(self, *arguments) -> None:
        """Their shard is down: repeated until it is back, beside the work of other shards."""
        if not self.stopped.wait(0.5):
            self.settle(*arguments)

    # ---- Producers and workers

    def start(self) -> None:
        self.stack.loaded_at = time.time()
        for first in range(0, BACKLOG, 100):
            self.enqueue([{"topic": "backlog", "payload": {"text": "x" * 200}}] * 100, keep=True)
        self.enqueue([{"topic": "later", "delay": {"seconds": 3600}}] * LATER, keep=True)
        for period, work in ((0.1, self.produce_mail), (0.2, self.produce_report), (1 / 9, self.produce_flaky),
                             (2.0, self.hang), (1.0, self.repeat), (1.0, self.mistake)):
            self.spawn(self.every, period, work)
        for client in self.clients:
            self.spawn(self.stream, client, "mail", self.ack_all)
        self.spawn(self.stream, self.clients[0], "flaky", self.fail_some)
        self.spawn(self.pull_reports)

    def stop(self) -> None:
        self.stopped.set()
        for stream in self.streams:
            stream.cancel()
        for thread in list(self.threads):
            thread.join(10)

    def spawn(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        with self.lock:
            self.threads = [each for each in self.threads if each.is_alive() or each.ident is None]
            self.threads.append(thread)
        thread.start()

    def every(self, period: float, work) -> None:
        next_time = time.monotonic()
        while not self.stopped.wait(max(0.0, next_time - time.monotonic())):
            work()
            # Not caught up after an outage: the rate of the load stays the same.
            next_time = max(next_time + period, time.monotonic())

    def produce_mail(self) -> None:
        self.enqueue([{"topic": "mail", "payload": {"text": "hello"}}] * 6)

    def produce_report(self) -> None:
        self.enqueue([{"topic": "report"}] * 2)

    def produce_flaky(self) -> None:
        self.enqueue([{"topic": "flaky"}])

    def repeat(self) -> None:
        self.enqueue([{"topic": "repeat", "id": "one-a", "delay": {"seconds": 3600}}], keep=True)

    def mistake(self) -> None:
        try:
            self.clients[0].queue.Enqueue(api.EnqueueRequest(job={"topic": ""}), timeout=10)
            self.surprises.append("a job without a topic was accepted")
        except grpc.RpcError as error:
            self.count("rpc", "Enqueue", error.code().name)

    def fill(self) -> None:
        """Enqueues jobs with ids of its own, which cannot go to another shard than theirs, until `filled`."""
        while not self.filled.wait(0.05) and not self.stopped.is_set():
            self.number += 1
            job = {"topic": "fill", "id": f"fill-{self.number}", "payload": {"text": "x" * 1000}, "delay": {"seconds": 3600}}
            self.call(self.clients[self.number % 2], "Enqueue", api.EnqueueRequest(job=job))

    def hang(self) -> None:
        """Takes a job and never settles it; its next attempt is an hour away."""
        retry = {"max_attempts": -1, "delays": [{"seconds": 3600}]}
        if self.enqueue([{"topic": "hang", "retry": retry}], self.clients[1]):
            lease = {"seconds": int(HANG_LEASE)}
            taken = self.call(self.clients[1], "Pull", api.PullRequest(topics=["hang"], max_jobs=5, lease_duration=lease, wait={"seconds": 0}))
            for _ in taken.deliveries if taken else []:
                self.count("delivered", "hang", "pull")

    def pull_reports(self) -> None:
        client = self.clients[1]
        while not self.stopped.is_set():
            taken = self.call(client, "Pull", api.PullRequest(topics=["report"], max_jobs=50, wait={"seconds": 1}))
            if taken is None or not taken.deliveries:
                self.stopped.wait(0.1)
                continue
            self.count("delivered", "report", "pull", n=len(taken.deliveries))
            self.stopped.wait(REPORT_RUN)
            self.settle(client, "report", [each.receipt for each in taken.deliveries])

    def stream(self, client: Client, topic: str, work) -> None:
        while not self.stopped.is_set():
            call = client.queue.Stream(api.StreamRequest(topics=[topic], max_in_flight=50, worker_id=f"{topic}-{client.name}"))
            self.streams.append(call)
            try:
                for message in call:
                    if message.deliveries:
                        self.count("delivered", topic, "stream", n=len(message.deliveries))
                        work(client, topic, list(message.deliveries))
            except grpc.RpcError as error:
                if not self.stopped.is_set() and error.code() not in OF_AN_OUTAGE | self.allowed:
                    self.surprises.append(f"Stream: {error.code().name} {error.details()}")
            self.stopped.wait(0.2)

    def ack_all(self, client: Client, topic: str, deliveries: list) -> None:
        self.settle(client, topic, [each.receipt for each in deliveries])

    def fail_some(self, client: Client, topic: str, deliveries: list) -> None:
        """Of first attempts: a third fails, a sixth is dead, a sixth is released; the rest and all others succeed."""
        for each in deliveries:
            self.number += 1
            kind = self.number % 6 if each.delivery == 1 else 5
            if kind in (0, 1):
                self.settle(client, topic, [each.receipt], api.NACK_ACTION_RETRY, "retried", delay=1)
            elif kind == 2:
                self.settle(client, topic, [each.receipt], api.NACK_ACTION_DEAD_LETTER, "dead")
            elif kind == 3:
                self.settle(client, topic, [each.receipt], api.NACK_ACTION_RELEASE, "released", delay=1)
            else:
                self.settle(client, topic, [each.receipt])
