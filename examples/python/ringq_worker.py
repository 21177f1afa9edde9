"""The machinery of a worker: its stream, the leases of its jobs, handlers and settles.

One event loop owns all state: nothing needs a lock, and cancelling a task stops a handler. The loop also extends the
leases, so a handler must not block it: call blocking code by `await asyncio.to_thread(...)`.
"""
import asyncio
import logging
import signal
from copy import copy
from time import monotonic as now  # The clock of the leases, whatever the wall clock or the server's clock does.

import grpc
from grpc import StatusCode
from ringq.v1 import job_pb2, queue_service_pb2 as pb

from ringq_client import CallFailed, Client, Pauses

log = logging.getLogger("ringq")
REQUESTS = {"Ack": pb.AckRequest, "Nack": pb.NackRequest, "Extend": pb.ExtendRequest}
REFUSED = -1  # Beside the numbers of SettleError: the call failed for good.
GATHER_TIME, ITEMS_MAX, BYTES_MAX = 0.005, 1000, 3 << 20  # Items that come within the time share a call of this size.
ARRIVAL_TIME = 0.2  # A stopped worker reads on: a job that never arrives would wait for the orphan grace, as after a crash.


class DeadLetter(Exception):
    """Raised by a handler for a job that can never succeed."""


def text_of(error):
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # Code of the handler's libraries.
        text = type(error).__name__
    return text.encode(errors="replace")[:4096].decode(errors="ignore")


class Job:
    """A delivery in hand. Without `task` it waits for a handler; with `outcome` it is being settled."""
    def __init__(self, worker, delivery):
        self.worker, self.delivery, self.receipt = worker, delivery, delivery.receipt
        self.name = f"{delivery.topic}/{delivery.id}"
        self.lease = delivery.lease_duration.ToNanoseconds() / 1e9 or worker.lease
        self.task, self.outcome, self.timers, self.items = None, "", (), {}
        self.gone = asyncio.get_running_loop().create_future()
        # The producer's trace context: calls that the handler makes pass it on in a header of this name.
        self.traceparent = delivery.headers.get("traceparent", "")

    async def save(self, text):
        """Keeps a checkpoint for the next delivery; ends the handler if the job is no longer this worker's."""
        sent, item = now(), pb.ExtendItem(receipt=self.receipt, checkpoint=job_pb2.Payload(text=text))
        try:
            answer = await self.worker.client.call("Extend", pb.ExtendRequest(items=[item]))
        except CallFailed as failed:
            return log.warning("%s: checkpoint not saved: %s", self.name, failed)
        error = answer.failures[0].error if answer.failures else 0
        if error == pb.SETTLE_ERROR_UNAVAILABLE:  # Its shard is down or full: extended without it, when it is time.
            return log.warning("%s: checkpoint not saved: %s", self.name, answer.failures[0].message)
        self.worker.on_answer("Extend", self, error, sent)
        await asyncio.sleep(0)  # Where the handler ends if that cancelled it.


class Worker:
    def __init__(self, handler, topics, worker_id, credit, concurrency, lease, grace):
        self.handler, self.concurrency, self.lease, self.grace = handler, concurrency, lease, grace
        self.request = pb.StreamRequest(topics=topics, worker_id=worker_id, max_in_flight=credit)
        self.request.lease_duration.FromNanoseconds(int(lease * 1e9))
        self.jobs, self.waiting = {}, {}  # By receipt: all in hand until settled; those without a handler.
        self.gathered = {method: [] for method in REQUESTS}
        self.handlers, self.calls, self.stopping, self.orphan_grace = set(), set(), False, 5
        self.counts = {"acked": 0, "nacked": 0, "released": 0, "lost": 0}

    async def run(self):
        """Works until SIGTERM or SIGINT; a second signal ends the process at once."""
        self.client, loop, stop, self.may_settle = Client(), asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self.may_settle.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        reader = asyncio.create_task(self.read_streams())
        reader.add_done_callback(lambda _: stop.set())  # It ends by a programming error only.
        await stop.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        await self.stop(reader)
        self.counts["lost"] += len(self.jobs)  # Not settled in time.
        log.info("stopped: %s", " ".join(f"{name}={count}" for name, count in self.counts.items()))
        if reader.done() and not reader.cancelled():
            reader.result()  # Raises that error.

    async def stop(self, reader):
        """Lets handlers finish. The other jobs go back, also those that are on their way here."""
        log.info("stopping: %d jobs run", len(self.handlers))
        self.stopping = True
        self.may_settle.clear()  # Each settle would bring another job.
        await asyncio.wait([reader], timeout=ARRIVAL_TIME)
        while not reader.done():  # A message that comes at this moment may swallow it.
            reader.cancel()
            await asyncio.wait([reader], timeout=0.1)
        self.may_settle.set()
        for job in self.waiting.values():
            self.release(job)
        self.waiting.clear()
        self.extend(self.jobs.values())  # Or the server releases them, too, when the orphan grace is over.
        await self.settled(self.grace)
        for task in self.handlers:
            task.cancel()  # `on_handler_end` releases the job.
        await self.settled(self.client.timeout)
        await self.client.channel.close()

    async def settled(self, limit):
        if waits := [job.gone for job in self.jobs.values()]:
            await asyncio.wait(waits, timeout=limit)

    # --- the stream ---

    async def read_streams(self):
        """Holds one stream after the other; each continues the one before and adopts its jobs."""
        pauses = Pauses(0.25, 5)
        while not self.stopping:
            started, self.opened = now(), False
            try:
                await self.read_stream(pauses)
                log.info("stream ended, opening the next one")
                pause = 0 if now() - started > 1 else pauses.next()  # At once, but no loop of streams that end at once.
            except (CallFailed, asyncio.TimeoutError) as failed:
                if self.opened:  # It broke. The server keeps its jobs if they are extended within the orphan grace.
                    self.extend(self.jobs.values())
                if isinstance(failed, CallFailed) and not failed.repeatable:
                    pauses.bound = pauses.longest  # The worker lacks a right, perhaps: that may come back.
                pause = min(getattr(failed, "delay", 0), 30) + pauses.next()
                why = str(failed) or f"no message came in time, connection is {self.client.channel.get_state().name}"
                log.warning("no stream, next in %.2f s: %s", pause, why)
            await asyncio.sleep(pause)

    async def read_stream(self, pauses):
        call = self.client.stub.Stream(self.request, **self.client.options)  # Without a deadline.
        silence = self.client.timeout  # The first message comes at once.
        try:
            while (message := await asyncio.wait_for(call.read(), silence)) is not grpc.aio.EOF:
                self.opened, pauses.bound = True, pauses.first
                if message.HasField("info"):
                    info = message.info
                    log.info("stream %s of server %s opened", info.stream_id, info.replica)
                    self.request.continues_stream_id = info.stream_id
                    silence = 3 * (info.heartbeat_interval.ToNanoseconds() / 1e9 or 20)
                    self.orphan_grace = info.orphan_grace.ToNanoseconds() / 1e9 or 5
                    self.extend(self.jobs.values())  # A revocation between two streams is learnt from the answer.
                for revocation in message.revocations:
                    if job := self.jobs.get(revocation.receipt):
                        self.lose(job, f"revoked, reason {revocation.reason}")
                self.take(message.deliveries)
                if message.draining:
                    log.info("the server drains")  # It ends the stream now.
        except grpc.aio.AioRpcError as error:
            raise CallFailed(error) from None
        finally:
            call.cancel()

    # --- jobs ---

    def take(self, deliveries):
        for delivery in deliveries:
            if delivery.receipt not in self.jobs:
                job = self.jobs[delivery.receipt] = self.waiting[delivery.receipt] = Job(self, delivery)
                self.count_lease(job, now())
        self.start_handlers()

    def start_handlers(self):
        while self.waiting and len(self.handlers) < self.concurrency and not self.stopping:
            job = self.waiting.pop(next(iter(self.waiting)))
            job.task = asyncio.create_task(self.work(job))
            self.handlers.add(job.task)
            job.task.add_done_callback(lambda task, job=job: self.on_handler_end(job, task))

    async def work(self, job):
        result = await self.handler(job)
        try:
            return pb.AckItem(receipt=job.receipt, result=job_pb2.Payload(text=result))
        except (TypeError, ValueError) as error:  # No text. The work is done all the same, and must not run again.
            log.warning("%s: acked without its result: %s", job.name, text_of(error))
            return pb.AckItem(receipt=job.receipt)

    def on_handler_end(self, job, task):
        self.handlers.discard(task)
        error = None if task.cancelled() else task.exception()
        if self.jobs.get(job.receipt) is not job:
            pass  # Lost while it ran: nothing is settled.
        elif task.cancelled():
            self.release(job)
        elif error:
            text = text_of(error)
            log.warning("%s failed, attempt %d, trace %s: %s", job.name, job.delivery.attempt, job.traceparent, text)
            action = pb.NACK_ACTION_DEAD_LETTER if isinstance(error, DeadLetter) else pb.NACK_ACTION_RETRY
            self.settle(job, "nacked", pb.NackItem(receipt=job.receipt, action=action, error=text))
        else:
            self.settle(job, "acked", task.result())
        self.start_handlers()

    def lose(self, job, why):
        """Stops work on a job that is no longer this worker's. If its settle is under way, that answer decides."""
        if self.jobs.get(job.receipt) is job and not job.outcome:
            self.drop(job, "lost", why)
            self.waiting.pop(job.receipt, None)
            if job.task:
                job.task.cancel()

    def drop(self, job, count, why=""):
        del self.jobs[job.receipt]
        job.gone.set_result(None)
        for timer in job.timers:
            timer.cancel()
        self.counts[count] += 1
        if count == "lost":
            log.warning("%s is lost: %s", job.name, why)

    def release(self, job):
        self.settle(job, "released", pb.NackItem(receipt=job.receipt, action=pb.NACK_ACTION_RELEASE))

    def settle(self, job, outcome, item):
        job.outcome = outcome
        self.gather("Ack" if outcome == "acked" else "Nack", job, item)

    # --- leases ---

    def count_lease(self, job, start):
        """Also for jobs that wait, or whose Ack is not through: extends at half of the lease, gives up at its end."""
        for timer in job.timers:
            timer.cancel()
        job.expires, call_later = start + job.lease, asyncio.get_running_loop().call_later
        job.timers = (call_later(start + job.lease / 2 - now(), self.extend, [job]),
                      call_later(job.expires - now(), self.lose, job, "its lease is over"))

    def extend(self, jobs):
        for job in jobs:
            self.gather("Extend", job, pb.ExtendItem(receipt=job.receipt))

    # --- calls ---

    def gather(self, method, job, item):
        if not self.gathered[method]:
            self.spawn(self.flush(method))
        self.gathered[method].append((job, item))
        job.items[method] = item  # A newer Extend replaces one that is still being repeated.

    async def flush(self, method):
        await asyncio.sleep(GATHER_TIME if len(self.jobs) > 1 else 0)  # There is no other to wait for.
        if method != "Extend":
            await self.may_settle.wait()
        pairs, self.gathered[method] = self.gathered[method], []
        part, size = [], 0
        for pair in pairs:
            if part and (len(part) == ITEMS_MAX or size + pair[1].ByteSize() > BYTES_MAX):
                self.spawn(self.send(method, part))
                part, size = [], 0
            part.append(pair)
            size += pair[1].ByteSize()
        await self.send(method, part)

    def spawn(self, coroutine):
        task = asyncio.create_task(coroutine)
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)

    async def send(self, method, pairs, pauses=None, repeated=False):
        """One call, repeated with the items that may succeed later; each `send` has its own task, so no other waits."""
        pauses, since = copy(pauses or Pauses(0.1, 1)), now()
        while pairs:
            sent, timeout, delay, why = now(), self.client.timeout, 0, "SETTLE_ERROR_UNAVAILABLE"
            if method == "Extend":  # Late answers are worth nothing: leave time for a repeat.
                rest = min(job.expires for job, _ in pairs) - sent
                timeout = max(0.1, min(timeout, self.orphan_grace / 2, rest / 2))
            try:
                answer = await self.client.call(method, REQUESTS[method](items=[item for _, item in pairs]), timeout)
                errors, unexplained = {failure.index: failure.error for failure in answer.failures}, False
            except CallFailed as failed:
                unexplained = failed.unexplained
                if failed.of_an_item and len(pairs) > 1:
                    for pair in pairs:  # Nothing was applied: one bad item must not spoil the others.
                        self.spawn(self.send(method, [pair], pauses, repeated))
                    return
                job, item = pairs[0]
                invalid = failed.of_an_item and failed.code is StatusCode.INVALID_ARGUMENT
                # Its Extends have passed meanwhile.
                stuck = unexplained and len(pairs) == 1 and now() - since >= job.lease
                if (invalid or stuck) and method == "Ack" and item.HasField("result"):
                    log.warning("%s: acked without its result: %s", job.name, failed)
                    item.ClearField("result")  # Finished work must not run again for its result.
                    continue
                delay, why = failed.delay, failed
                errors = dict.fromkeys(range(len(pairs)), pb.SETTLE_ERROR_UNAVAILABLE if failed.repeatable else REFUSED)
            if not unexplained or len(pairs) > 1:
                since = now()  # The begin of such failures of one item, in a row.
            again = []
            for index, (job, item) in enumerate(pairs):
                if (error := errors.get(index, 0)) == pb.SETTLE_ERROR_UNAVAILABLE:
                    again.append((job, item))
                else:
                    self.on_answer(method, job, error, sent, repeated, why)
            if again:
                pause = delay + pauses.next()
                log.warning("%s of %d jobs failed, repeated in %.2f s: %s", method, len(again), pause, why)
                await asyncio.sleep(pause)
            for job, _ in again if method != "Extend" else ():
                if now() >= job.expires:
                    self.drop(job, "lost", "its lease ended before it could be settled")
            pairs, repeated = [(job, item) for job, item in again if self.wants(job, method, item)], True
            if unexplained and method != "Extend" and len(pairs) > 1:  # Perhaps for its size, or for one item.
                middle = len(pairs) // 2
                self.spawn(self.send(method, pairs[middle:], pauses, repeated))
                pairs = pairs[:middle]

    def wants(self, job, method, item):
        return self.jobs.get(job.receipt) is job and job.items[method] is item

    def on_answer(self, method, job, error, sent, repeated=False, why=""):
        why = f"{method} failed: {why if error == REFUSED else f'SettleError {error}'}"
        if self.jobs.get(job.receipt) is not job:
            pass  # Lost or settled in the meantime.
        elif method != "Extend":
            done = not error or error == pb.SETTLE_ERROR_NOT_FOUND and method == "Ack" and repeated
            self.drop(job, job.outcome if done else "lost", why)
        elif not error:
            self.count_lease(job, sent)
        elif error == REFUSED:
            log.warning("%s: %s", job.name, why)  # Its lease goes on to its end.
        else:
            self.lose(job, why)
