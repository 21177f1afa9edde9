//! Faults for the Python worker: one or more for each scenario, which must notice them.

/// One fault.
pub(crate) struct Mutation {
    /// Scenario that must fail.
    pub(crate) scenario: &'static str,
    /// Behaviour of the broken program.
    pub(crate) fault: &'static str,
    /// File, a text that it has exactly once, and what takes its place.
    pub(crate) edits: &'static [(&'static str, &'static str, &'static str)],
}

const CLIENT: &str = "ringq_client.py";
const MACHINERY: &str = "ringq_worker.py";
const WORKER: &str = "worker.py";
const PRODUCER: &str = "producer.py";

/// Sends one settle or Extend call at a time.
const ONE_CALL_AT_A_TIME: &[(&str, &str, &str)] = &[(
    MACHINERY,
    "        await self.send(method, part)\n",
    "        while (former := getattr(self, 'former', None)) and not former.done():
            await asyncio.wait([former])
        self.former = asyncio.create_task(self.send(method, part))\n",
)];

pub(crate) const MUTATIONS: &[Mutation] = &[
    Mutation {
        scenario: "first_job",
        fault: "acks without a result",
        edits: &[(
            MACHINERY,
            "return pb.AckItem(receipt=job.receipt, result=job_pb2.Payload(text=result))",
            "return pb.AckItem(receipt=job.receipt)",
        )],
    },
    Mutation {
        scenario: "unavailable_items",
        fault: "does not read `failures`",
        edits: &[(
            MACHINERY,
            "{failure.index: failure.error for failure in answer.failures}, False",
            "{}, False",
        )],
    },
    Mutation {
        scenario: "unavailable_call",
        fault: "ignores the delay of RetryInfo",
        edits: &[(MACHINERY, "delay, why = failed.delay, failed", "delay, why = 0, failed")],
    },
    Mutation {
        scenario: "unknown_error",
        fault: "repeats on UNAVAILABLE only",
        edits: &[(
            CLIENT,
            "return self.code is not StatusCode.UNIMPLEMENTED",
            "return self.code is StatusCode.UNAVAILABLE",
        )],
    },
    Mutation {
        scenario: "slow_ack",
        fault: "sets no deadline",
        edits: &[(CLIENT, "timeout=timeout or self.timeout", "timeout=None")],
    },
    Mutation {
        scenario: "long_job",
        fault: "extends when the lease is over",
        edits: &[(MACHINERY, "start + job.lease / 2 - now()", "start + job.lease * 0.98 - now()")],
    },
    Mutation {
        scenario: "stale_extend",
        fault: "goes on after STALE",
        edits: &[(MACHINERY, "self.lose(job, why)", "pass")],
    },
    Mutation {
        scenario: "failed_job",
        fault: "retries what can never succeed",
        edits: &[(
            MACHINERY,
            "pb.NACK_ACTION_DEAD_LETTER if isinstance(error, DeadLetter) else pb.NACK_ACTION_RETRY",
            "pb.NACK_ACTION_RETRY",
        )],
    },
    Mutation {
        scenario: "graceful_stop",
        fault: "keeps its stream and waiting jobs until the running one ends",
        edits: &[(
            MACHINERY,
            "        await asyncio.wait([reader], timeout=ARRIVAL_TIME)\n",
            "        await self.settled(self.grace)\n",
        )],
    },
    Mutation {
        scenario: "graceful_stop",
        fault: "cancels its stream while a job is on its way",
        edits: &[(MACHINERY, "timeout=ARRIVAL_TIME", "timeout=0")],
    },
    Mutation {
        scenario: "graceful_stop",
        fault: "begins handlers while it reads on",
        edits: &[(
            MACHINERY,
            "len(self.handlers) < self.concurrency and not self.stopping",
            "len(self.handlers) < self.concurrency and self.may_settle",
        )],
    },
    Mutation {
        scenario: "graceful_stop",
        fault: "settles before its stream has ended",
        edits: &[(
            MACHINERY,
            "        if method != \"Extend\":\n            await self.may_settle.wait()\n",
            "",
        )],
    },
    Mutation {
        scenario: "graceful_stop",
        fault: "does not extend the running job when it has ended its stream",
        edits: &[(
            MACHINERY,
            "        self.extend(self.jobs.values())  # Or the server releases",
            "        # Or the server releases",
        )],
    },
    Mutation {
        scenario: "stop_after_grace",
        fault: "waits for handlers without a limit",
        edits: &[(MACHINERY, "await self.settled(self.grace)", "await self.settled(None)")],
    },
    Mutation {
        scenario: "outcome_unknown",
        fault: "repeats a call with another request_id",
        edits: &[(PRODUCER, "request_id=request_id", "request_id=uuid.uuid4().hex")],
    },
    Mutation {
        scenario: "outcome_unknown",
        fault: "repeats a job without the id of its result",
        edits: &[(PRODUCER, "job.id = result.id or job.id or f\"r={request_id}={index}\"", "pass")],
    },
    Mutation {
        scenario: "checkpoint",
        fault: "begins at the first step each time",
        edits: &[(
            WORKER,
            "start = json.loads(delivery.checkpoint.text or \"{}\").get(\"step\", 0)",
            "start = 0",
        )],
    },
    Mutation {
        scenario: "cut_stream",
        fault: "extends nothing after a break",
        edits: &[(MACHINERY, ":  # It broke.", " and False:  # It broke.")],
    },
    Mutation {
        scenario: "cut_stream",
        fault: "opens the next stream without a pause",
        edits: &[(MACHINERY, "await asyncio.sleep(pause)\n\n", "await asyncio.sleep(0)\n\n")],
    },
    Mutation {
        scenario: "failed_extend",
        fault: "does not repeat a failed Extend",
        edits: &[
            (
                MACHINERY,
                "            if again:\n",
                "            if again and method != \"Extend\":\n",
            ),
            (
                MACHINERY,
                "            for job, _ in again if",
                "            if method == \"Extend\":\n                return\n            for job, _ in again if",
            ),
        ],
    },
    Mutation {
        scenario: "half_dead_stream",
        fault: "has no watchdog for heartbeats",
        edits: &[(MACHINERY, "silence = 3 * (", "silence = 3_000 * (")],
    },
    Mutation {
        scenario: "draining",
        fault: "does not name the former stream",
        edits: &[(MACHINERY, "self.request.continues_stream_id = info.stream_id", "pass")],
    },
    Mutation {
        scenario: "stream_ends_ok",
        fault: "takes OK for the end of the work",
        edits: &[(MACHINERY, "log.info(\"stream ended, opening the next one\")", "return")],
    },
    Mutation {
        scenario: "revoked_running",
        fault: "does not stop the handler of a revoked job",
        edits: &[(MACHINERY, "            if job.task:\n                job.task.cancel()\n", "")],
    },
    Mutation {
        scenario: "revoked_waiting",
        fault: "starts a revoked job that waited",
        edits: &[(MACHINERY, "self.waiting.pop(job.receipt, None)", "pass")],
    },
    Mutation {
        scenario: "missed_revocation",
        fault: "extends nothing on a new stream",
        edits: &[(
            MACHINERY,
            "self.extend(self.jobs.values())  # A revocation",
            "pass  # A revocation",
        )],
    },
    Mutation {
        scenario: "server_away",
        fault: "connects again after a minute",
        edits: &[
            (
                CLIENT,
                "(\"grpc.initial_reconnect_backoff_ms\", 100)",
                "(\"grpc.initial_reconnect_backoff_ms\", 60_000)",
            ),
            (
                CLIENT,
                "(\"grpc.max_reconnect_backoff_ms\", 2_000)",
                "(\"grpc.max_reconnect_backoff_ms\", 60_000)",
            ),
        ],
    },
    Mutation {
        scenario: "stream_refused",
        fault: "ignores the delay of RetryInfo",
        edits: &[(
            MACHINERY,
            "min(getattr(failed, \"delay\", 0), 30) + pauses.next()",
            "pauses.next()",
        )],
    },
    Mutation {
        scenario: "rights_come_back",
        fault: "ends when it lacks a right",
        edits: &[(MACHINERY, "pauses.bound = pauses.longest", "raise")],
    },
    Mutation {
        scenario: "reordered_answers",
        fault: "waits for the answer of one Ack before the next",
        edits: ONE_CALL_AT_A_TIME,
    },
    Mutation {
        scenario: "two_topics_slow_shard",
        fault: "repeats an Ack before it sends others",
        edits: ONE_CALL_AT_A_TIME,
    },
    Mutation {
        scenario: "hanging_shard",
        fault: "has at most 8 calls under way",
        edits: &[(
            MACHINERY,
            "        await self.send(method, part)\n",
            "        self.places = getattr(self, 'places', None) or asyncio.Semaphore(8)
        async with self.places:
            await self.send(method, part)\n",
        )],
    },
    Mutation {
        scenario: "clock_skew",
        fault: "counts leases from the due time by the wall clock",
        edits: &[(
            MACHINERY,
            "self.count_lease(job, now())",
            "self.count_lease(job, now() + delivery.due_time.seconds - __import__('time').time())",
        )],
    },
    Mutation {
        scenario: "large_payloads",
        fault: "takes messages of 4 MiB at most",
        edits: &[(CLIENT, "(\"grpc.max_receive_message_length\", 16 << 20),", "")],
    },
    Mutation {
        scenario: "batch_beyond_credit",
        fault: "runs all it gets at once",
        edits: &[(MACHINERY, " and len(self.handlers) < self.concurrency", "")],
    },
    Mutation {
        scenario: "batch_beyond_credit",
        fault: "extends only jobs that run",
        edits: &[(
            MACHINERY,
            "        for job in jobs:\n            self.gather(\"Extend\"",
            "        for job in filter(lambda job: job.task, jobs):\n            self.gather(\"Extend\"",
        )],
    },
    Mutation {
        scenario: "extend_during_ack",
        fault: "takes the answer of an Extend for that of the Ack",
        edits: &[(
            MACHINERY,
            "if self.jobs.get(job.receipt) is job and not job.outcome:",
            "if self.jobs.get(job.receipt) is job:",
        )],
    },
    Mutation {
        scenario: "many_acks",
        fault: "sends each Ack in a call of its own",
        edits: &[(MACHINERY, "= 0.005, 1000, 3 << 20", "= 0.005, 1, 3 << 20")],
    },
    Mutation {
        scenario: "ack_not_found",
        fault: "takes NOT_FOUND after a repeat for a loss",
        edits: &[(
            MACHINERY,
            "error == pb.SETTLE_ERROR_NOT_FOUND and method",
            "error == 77 and method",
        )],
    },
    Mutation {
        scenario: "bad_item",
        fault: "gives up all jobs of a call that is refused for one",
        edits: &[(MACHINERY, "if failed.of_an_item and len(pairs) > 1:", "if False:")],
    },
    Mutation {
        scenario: "body_limit",
        fault: "repeats whole what a proxy refuses for its size",
        edits: &[(MACHINERY, "if unexplained and method !=", "if False and method !=")],
    },
    Mutation {
        scenario: "body_limit",
        fault: "repeats an Ack for ever with a result that a proxy refuses",
        edits: &[(MACHINERY, "now() - since >= job.lease", "now() - since >= 1_000")],
    },
    Mutation {
        scenario: "body_limit",
        fault: "drops the result after one failure without details",
        edits: &[(MACHINERY, "now() - since >= job.lease", "now() - since >= 0")],
    },
    Mutation {
        scenario: "malformed",
        fault: "repeats calls that the server refuses",
        edits: &[(
            MACHINERY,
            "pb.SETTLE_ERROR_UNAVAILABLE if failed.repeatable else REFUSED",
            "pb.SETTLE_ERROR_UNAVAILABLE",
        )],
    },
    Mutation {
        scenario: "malformed",
        fault: "gives up an Ack whose result is refused",
        edits: &[(MACHINERY, "if (invalid or stuck) and", "if stuck and")],
    },
    Mutation {
        scenario: "unknown_fields",
        fault: "expects each revoked receipt to be its own",
        edits: &[(
            MACHINERY,
            "if job := self.jobs.get(revocation.receipt):",
            "if job := self.jobs[revocation.receipt]:",
        )],
    },
    Mutation {
        scenario: "duplicate_message",
        fault: "runs a delivery that comes twice",
        edits: &[(MACHINERY, "if delivery.receipt not in self.jobs:", "if True:")],
    },
    Mutation {
        scenario: "lease_over",
        fault: "works on when the lease is over",
        edits: &[(
            MACHINERY,
            "call_later(job.expires - now(), self.lose",
            "call_later(1e6, self.lose",
        )],
    },
];
