"""Enqueues COUNT jobs in batches. Each job has an id, or its call a request_id, that it keeps. By that a repeat is safe, but
only while the first one's record lives: so the jobs have a retention, and repeats end long before it does."""
import asyncio
import os
import sys
import uuid
from time import monotonic as now

from google.rpc import code_pb2
from ringq.v1 import job_pb2, queue_service_pb2 as pb

from ringq_client import CallFailed, Client, Pauses, setting

REPEATABLE = (code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED, code_pb2.DEADLINE_EXCEEDED)
OUTCOME_UNKNOWN = ("OUTCOME_UNKNOWN", "DURABILITY_NOT_REACHED", "DEADLINE_EXCEEDED")
BYTES_MAX = 3 << 20  # Of a call; the server takes 4 MiB.
RETENTION, REPEATS = 3600, 900  # Seconds.


class Producer:
    def __init__(self, own_ids):
        self.client, self.own_ids = Client(), own_ids
        self.counts = {"enqueued": 0, "unchanged": 0, "failed": 0}

    def failed(self, jobs, why):
        self.counts["failed"] += len(jobs)
        print(f"not enqueued: {', '.join(job.id or 'a job without id' for job in jobs)}: {why}", file=sys.stderr)

    async def enqueue(self, jobs):
        """Sends one call, then those of its jobs again that may succeed later, until all have a final answer."""
        pauses, request_id, delay, end = Pauses(0.1, 5), uuid.uuid4().hex, 0, now() + REPEATS
        while jobs:
            try:
                request = pb.BatchEnqueueRequest(jobs=jobs, request_id=request_id)
                answer = await self.client.call("BatchEnqueue", request)
                jobs, delay = self.sort(jobs, answer.results, request_id), 0
            except CallFailed as failed:
                if not failed.repeatable:
                    return self.failed(jobs, failed)
                delay = failed.delay
                print(f"BatchEnqueue failed, repeated: {failed}", file=sys.stderr)
            if jobs and now() + delay > end:
                return self.failed(jobs, f"no final answer for {REPEATS} s: may be stored")
            if jobs:
                await asyncio.sleep(delay + pauses.next())

    def sort(self, jobs, results, request_id):
        """Counts final results, and returns the jobs to repeat."""
        again = []
        for index, (job, result) in enumerate(zip(jobs, results)):
            error = result.error
            if not error.code:
                self.counts["unchanged" if result.outcome == pb.ENQUEUE_OUTCOME_UNCHANGED else "enqueued"] += 1
                if result.state in (job_pb2.JOB_STATE_DEAD, job_pb2.JOB_STATE_EXPIRED, job_pb2.JOB_STATE_CANCELLED):
                    state = job_pb2.JobState.Name(result.state)
                    print(f"{result.id} exists and will not run: {state}", file=sys.stderr)
            elif error.code not in REPEATABLE or error.reason in OUTCOME_UNKNOWN and not (result.id or self.own_ids):
                self.failed([job], f"{error.reason} {error.message}")  # Without an id a repeat could make a second job.
            else:
                # The id that the server made; by the contract, one that it did not name has this form.
                job.id = result.id or job.id or f"r={request_id}={index}"
                print(f"repeated: {job.id}: {error.reason} {error.message}", file=sys.stderr)
                again.append(job)
        return again


async def main(count):
    prefix, payload = setting("PREFIX", uuid.uuid4().hex[:12]), setting("PAYLOAD", '{"steps":2,"step_ms":10}')
    topic, batch = setting("TOPICS", "examples").split(",")[0], int(setting("BATCH", "100"))
    producer, jobs, size = Producer(prefix != "-"), [], 0
    for number in range(count):
        job = job_pb2.JobSpec(topic=topic, payload={"text": payload}, id="" if prefix == "-" else f"{prefix}-{number}")
        job.retention.FromSeconds(RETENTION)
        # W3C trace context, a new trace for each job; a program with OpenTelemetry injects its own context here.
        job.headers["traceparent"] = f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"
        if jobs and (len(jobs) == batch or size + job.ByteSize() > BYTES_MAX):
            await producer.enqueue(jobs)
            jobs, size = [], 0
        jobs.append(job)
        size += job.ByteSize() + 8  # With the field's own header.
    await producer.enqueue(jobs)
    print(" ".join(f"{name}={value}" for name, value in producer.counts.items()))
    return 1 if producer.counts["failed"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        sys.exit("usage: producer COUNT")
    sys.exit(asyncio.run(main(int(sys.argv[1]))))
