// Enqueues COUNT jobs. Usage: run-producer COUNT
import { randomBytes, randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type ServiceError, status } from "@grpc/grpc-js";
import { JobSpec, JobState } from "../stubs/ringq/v1/job.js";
import { BatchEnqueueRequest, type BatchEnqueueResponse, EnqueueOutcome } from "../stubs/ringq/v1/queue_service.js";
import { connect, errorInfo, isPassing, isRepeatable, log, pause, retryDelay, setting, unary } from "./ringq.js";

const { RINGQ_TOPICS = "examples", RINGQ_PAYLOAD = '{"steps":2,"step_ms":10}', RINGQ_BATCH = 100 } = process.env;
const { RINGQ_PREFIX = randomBytes(4).toString("hex") } = process.env;
// By the contract, a repeat finds a job while its record lives: an hour from its end.
const RETENTION = { seconds: 3_600 };
const REPEATED_FOR = 15 * 60_000;
const count = Number(process.argv[2]);
const client = connect();
const NOT_RUN = [JobState.DEAD, JobState.EXPIRED, JobState.CANCELLED];
const totals = { enqueued: 0, unchanged: 0, failed: 0 };

function job(index: number): JobSpec {
  return JobSpec.fromPartial({
    topic: RINGQ_TOPICS.split(",")[0],
    id: RINGQ_PREFIX === "-" ? "" : `${RINGQ_PREFIX}-${index}`,
    payload: { text: RINGQ_PAYLOAD },
    retention: RETENTION,
    // The trace of whatever asked for this job: here each begins one.
    headers: { traceparent: `00-${randomBytes(16).toString("hex")}-${randomBytes(8).toString("hex")}-01` },
  });
}

/** Makes the call until it is answered, or `end`. It has a request_id, so a repeat stores no job twice until then. */
async function call(request: BatchEnqueueRequest, end: number): Promise<BatchEnqueueResponse> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await unary(client.batchEnqueue.bind(client), request, setting("RINGQ_CALL_TIMEOUT", 10));
    } catch (error) {
      const info = errorInfo(error as ServiceError);
      // Such a repeat came too late: the server cannot know whether the jobs ran.
      const tooLate = info?.reason === "OUTCOME_UNKNOWN" && !info.metadata["id"] && !retryDelay(error as ServiceError);
      if (!isRepeatable(error as ServiceError) || tooLate) throw error;
      const delay = retryDelay(error as ServiceError) + pause(attempt, 100, 3_000);
      if (performance.now() + delay > end) throw new Error(`given up, may be stored: ${(error as Error).message}`);
      log(`BatchEnqueue failed: ${(error as Error).message}; again in ${Math.round(delay)} ms`);
      await sleep(delay);
    }
  }
}

async function enqueue(
  jobs: JobSpec[], requestId: string, attempt = 0, end = performance.now() + REPEATED_FOR,
): Promise<void> {
  if (!jobs.length) return;
  if (attempt) await sleep(pause(attempt, 100, 3_000));
  let results;
  try {
    ({ results } = await call(BatchEnqueueRequest.fromPartial({ jobs, requestId }), end));
  } catch (error) {
    log(`${jobs.length} jobs have failed: ${(error as Error).message}`);
    totals.failed += jobs.length;
    return;
  }
  const again: JobSpec[] = [];
  results.forEach(({ id, outcome, state, error }, index) => {
    if (!error && NOT_RUN.includes(state)) log(`job ${id} exists and does not run: ${JobState[state]}`);
    if (!error) return totals[outcome === EnqueueOutcome.UNCHANGED ? "unchanged" : "enqueued"]++;
    const named = { ...jobs[index]!, id: id || jobs[index]!.id };
    const unknown = ["OUTCOME_UNKNOWN", "DURABILITY_NOT_REACHED", "DEADLINE_EXCEEDED"].includes(error.reason);
    const repeatable = isPassing(error.code);
    const late = repeatable && performance.now() > end;
    log(`job ${named.id || index}: ${error.reason}: ${error.message}${late ? ": given up, may be stored" : ""}`);
    // Without an id, the repeat of a job that may be stored could store a second one.
    return repeatable && !late && (named.id || !unknown) ? again.push(named) : totals.failed++;
  });
  // The request_id makes ids of the places of jobs without one, and these places have changed.
  await enqueue(again.filter((job) => job.id), requestId, attempt + 1, end);
  await enqueue(again.filter((job) => !job.id), randomUUID(), attempt + 1, end);
}

if (!(count >= 0)) throw new Error("usage: run-producer COUNT");
for (let first = 0; first < count; first += Number(RINGQ_BATCH)) {
  const size = Math.min(Number(RINGQ_BATCH), count - first);
  await enqueue(Array.from({ length: size }, (_, index) => job(first + index)), randomUUID());
}
console.log(`enqueued=${totals.enqueued} unchanged=${totals.unchanged} failed=${totals.failed}`);
client.close();
process.exitCode = totals.failed ? 1 : 0;
