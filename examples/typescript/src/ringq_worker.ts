// A worker of ringq around a handler: the eight duties of docs/workers.md. Copy it as it is.
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { type ClientReadableStream, type ServiceError, status } from "@grpc/grpc-js";
import type { Payload } from "../stubs/ringq/v1/job.js";
import * as pb from "../stubs/ringq/v1/queue_service.js";
import { connect, duration, isRepeatable, log, type Method, milliseconds, pause, retryDelay, unary } from "./ringq.js";

const { NackAction, SettleError } = pb;
const LONGEST_PAUSE = 3_000;
const MAX_ITEMS = 1_000; // Of one call, and 3 MiB. Settles that come within 5 ms share a call.
const MAX_BYTES = 3 << 20;
const GATHER = 5;

/** Thrown by a handler for a job that can never succeed. Any other error is a failed attempt. */
export class DeadLetter extends Error {}

/** Does the work of one job and returns its result. Stops when `job.signal` is aborted: the job is another worker's. */
export type Handler = (job: Job) => Promise<Payload | undefined>;

/** A delivery and its lease, which is counted from the arrival by the monotonic clock. */
export class Job {
  readonly controller = new AbortController();
  readonly signal = this.controller.signal;
  readonly lease: number;
  settling = false;
  extensions = 0;
  timers: NodeJS.Timeout[] = [];

  constructor(readonly delivery: pb.Delivery, private readonly keep: (job: Job, checkpoint: Payload) => Promise<void>) {
    this.lease = duration(delivery.leaseDuration) ?? 30_000;
  }

  /** The producer's trace context: send it as header `traceparent` of the calls that the handler makes. */
  get traceparent(): string {
    return this.delivery.headers["traceparent"] ?? "";
  }

  /** Saves a checkpoint, which comes with the next delivery of the job. Throws if the job is another worker's by now. */
  async save(checkpoint: Payload): Promise<void> {
    await this.keep(this, checkpoint);
    this.signal.throwIfAborted();
  }

  toString(): string {
    const { topic, id, attempt } = this.delivery;
    return `job ${topic}/${id} attempt ${attempt} trace ${this.traceparent.split("-")[1] ?? "none"}`;
  }
}

type Failure = pb.SettleFailure | undefined;
type Entry<T> = { item: T; timeout: number; resolve: (failure: Failure) => void; reject: (error: ServiceError) => void };

/** Gathers items into calls. Calls do not wait for each other: one that fails or hangs delays no other. */
class Batcher<T> {
  private entries: Entry<T>[] = [];
  private bytes = 0;
  private timer?: NodeJS.Timeout;

  constructor(private name: string, private codec: { encode(item: T): { finish(): Uint8Array } },
    private method: Method<{ items: T[] }, { failures: pb.SettleFailure[] }>) {}

  /** Returns the failure of this item, if there is one. Throws the error of the call. */
  add(item: T, timeout: number): Promise<Failure> {
    const size = this.codec.encode(item).finish().length;
    if (this.entries.length === MAX_ITEMS || this.bytes + size > MAX_BYTES) this.flush();
    this.timer ??= setTimeout(() => this.flush(), GATHER);
    this.bytes += size;
    return new Promise((resolve, reject) => this.entries.push({ item, timeout, resolve, reject }));
  }

  private flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.bytes = 0;
    void this.send(this.entries.splice(0));
  }

  private async send(entries: Entry<T>[]): Promise<void> {
    if (!entries.length) return;
    try {
      const timeout = Math.min(...entries.map((entry) => entry.timeout));
      const { failures } = await unary(this.method, { items: entries.map((entry) => entry.item) }, timeout);
      const failed = new Map(failures.map((failure) => [failure.index, failure]));
      entries.forEach((entry, index) => entry.resolve(failed.get(index)));
    } catch (error) {
      const { code, message } = error as ServiceError;
      log(`${this.name} of ${entries.length} jobs failed: ${message}`);
      // A bad item fails its whole call. Alone it fails no other.
      if (code === status.INVALID_ARGUMENT && entries.length > 1) entries.forEach((entry) => void this.send([entry]));
      else entries.forEach((entry) => entry.reject(error as ServiceError));
    }
  }
}

/** Repeats a settle until its answer is final, as long as it is wanted. Throws an error that must not be repeated. */
async function repeat(send: () => Promise<Failure>, wanted: () => boolean): Promise<{ failure: Failure; repeated: boolean }> {
  for (let attempt = 0; ; attempt++) {
    let failure: Failure;
    let delay = 0;
    try {
      failure = await send();
      if (failure?.error !== SettleError.UNAVAILABLE) return { failure, repeated: attempt > 0 };
    } catch (error) {
      if (!isRepeatable(error as ServiceError)) throw error;
      delay = retryDelay(error as ServiceError);
    }
    await sleep(delay + pause(attempt, 100, 1_000));
    if (!wanted()) return { failure, repeated: true };
  }
}

export class Worker {
  private readonly client = connect();
  private readonly acks = new Batcher("Ack", pb.AckItem, this.client.ack.bind(this.client) as never);
  private readonly nacks = new Batcher("Nack", pb.NackItem, this.client.nack.bind(this.client) as never);
  private readonly extends = new Batcher("Extend", pb.ExtendItem, this.client.extend.bind(this.client) as never);
  private readonly timeout = milliseconds("RINGQ_CALL_TIMEOUT", 10);
  private readonly concurrency = Number(process.env["RINGQ_CONCURRENCY"] ?? 4);
  private readonly counts = { acked: 0, nacked: 0, released: 0, lost: 0 };
  /** All jobs whose leases this worker has, by receipt: waiting, running, or being settled. */
  private readonly held = new Map<string, Job>();
  private readonly waiting = new Set<Job>();
  private readonly running = new Set<Job>();
  private readonly tasks = new Set<Promise<void>>();
  private readonly stopping = new AbortController();
  private stream?: ClientReadableStream<pb.StreamResponse>;

  constructor(private readonly handler: Handler) {}

  /** Works until `stop`. */
  async run(): Promise<void> {
    const { RINGQ_TOPICS = "examples", RINGQ_WORKER_ID = `${hostname()}-${process.pid}`, RINGQ_CREDIT = 16 } = process.env;
    const lease = milliseconds("RINGQ_LEASE", 30);
    const request = pb.StreamRequest.fromPartial({
      topics: RINGQ_TOPICS.split(","), workerId: RINGQ_WORKER_ID, maxInFlight: Number(RINGQ_CREDIT),
      leaseDuration: { seconds: Math.floor(lease / 1000), nanos: Math.round((lease % 1000) * 1e6) },
    });
    for (let refused = 0; !this.stopping.signal.aborted; ) {
      let delay = 0;
      let info: pb.StreamInfo | undefined;
      const stream = (this.stream = this.client.stream(request));
      const silent = () => (log("the stream is silent"), stream.cancel());
      let watchdog = setTimeout(silent, this.timeout);
      try {
        for await (const message of stream as AsyncIterable<pb.StreamResponse>) {
          clearTimeout(watchdog);
          if (message.info) {
            info = message.info;
            log(`stream ${info.streamId} of server ${info.replica}, ${this.held.size} jobs in hand`);
            // Revocations that were due between two streams do not come: the answers name those jobs.
            if (request.continuesStreamId) this.extendAll();
            request.continuesStreamId = info.streamId;
            refused = 0;
          }
          watchdog = setTimeout(silent, 3 * (duration(info?.heartbeatInterval) ?? 20_000));
          for (const delivery of message.deliveries) this.take(delivery);
          for (const { receipt, reason } of message.revocations) this.lose(receipt, `revoked: ${pb.RevocationReason[reason]}`);
          if (message.draining) log("the server drains");
        }
        log("the stream has ended");
        // An end without any message is a refusal: the next stream at once could be a storm of them.
        if (!info) delay = pause(refused++, 250, LONGEST_PAUSE);
      } catch (error) {
        if (this.stopping.signal.aborted) break;
        const { code, message } = error as ServiceError;
        const hopeless = [status.UNAUTHENTICATED, status.PERMISSION_DENIED, status.INVALID_ARGUMENT].includes(code);
        delay = Math.min(retryDelay(error as ServiceError), 30_000) + pause(hopeless ? 9 : refused++, 250, LONGEST_PAUSE);
        log(`the stream has failed: ${message}; the next one in ${Math.round(delay)} ms`);
        if (info) this.extendAll(); // Else the server releases them after the orphan_grace.
      } finally {
        clearTimeout(watchdog);
      }
      await sleep(delay, undefined, { signal: this.stopping.signal }).catch(() => {});
    }
  }

  /** Finishes running jobs, and releases the others. */
  async stop(): Promise<void> {
    const grace = milliseconds("RINGQ_GRACE", 25);
    this.stopping.abort();
    for (const job of this.waiting) this.release(job);
    // Jobs that come from now on only wait: released at once they would come again.
    await Promise.race([this.idle(), sleep(grace)]);
    for (const job of this.running) {
      job.controller.abort(new Error("the worker stops"));
      if (!job.settling) this.release(job);
    }
    await Promise.race([this.idle(), sleep(this.timeout)]);
    this.stream?.cancel();
    for (const job of this.waiting) this.release(job);
    await Promise.race([this.idle(), sleep(this.timeout)]);
    log(`stopped: ${Object.entries(this.counts).map(([name, count]) => `${name}=${count}`).join(" ")}`);
  }

  private async idle(): Promise<void> {
    while (this.tasks.size) await Promise.all(this.tasks);
  }

  private start(task: Promise<void>): void {
    this.tasks.add(task);
    void task.finally(() => this.tasks.delete(task));
  }

  private take(delivery: pb.Delivery): void {
    if (this.held.has(delivery.receipt)) return;
    const job = new Job(delivery, (job, checkpoint) => this.save(job, checkpoint));
    this.held.set(delivery.receipt, job);
    this.waiting.add(job);
    this.setTimers(job, performance.now());
    this.fill();
  }

  private fill(): void {
    for (const job of this.waiting) {
      if (this.stopping.signal.aborted || this.running.size >= this.concurrency) return;
      this.waiting.delete(job);
      this.running.add(job);
      this.start(this.handle(job));
    }
  }

  private async handle(job: Job): Promise<void> {
    const { receipt } = job.delivery;
    let settle: () => Promise<void>;
    try {
      const result = await this.handler(job);
      const item = pb.AckItem.fromPartial({ receipt, result });
      settle = () => this.settle(job, "acked", () => this.acks.add(item, this.timeout));
    } catch (error) {
      const action = error instanceof DeadLetter ? NackAction.DEAD_LETTER : NackAction.RETRY;
      settle = () => this.nack(job, action, String(error).slice(0, 1_000));
    }
    this.running.delete(job);
    this.fill();
    if (this.held.get(receipt) === job && !job.settling) await settle();
  }

  private release(job: Job): void {
    this.waiting.delete(job);
    this.start(this.nack(job, NackAction.RELEASE, ""));
  }

  private nack(job: Job, action: pb.NackAction, error: string): Promise<void> {
    if (error) log(`${job} failed: ${error}`);
    const item = pb.NackItem.fromPartial({ receipt: job.delivery.receipt, action, error });
    return this.settle(job, error ? "nacked" : "released", () => this.nacks.add(item, this.timeout));
  }

  private async settle(job: Job, count: "acked" | "nacked" | "released", send: () => Promise<Failure>): Promise<void> {
    job.settling = true; // It is extended until it is settled.
    let reason: string | undefined;
    try {
      const { failure, repeated } = await repeat(send, () => this.held.has(job.delivery.receipt));
      // A repeated Ack of a job that is gone: the first one did it, only its answer was lost.
      const done = !failure || (failure.error === SettleError.NOT_FOUND && repeated && count === "acked");
      if (!done) reason = `${SettleError[failure.error]}: ${failure.message}`;
    } catch (error) {
      reason = (error as Error).message;
    }
    if (!this.drop(job)) return;
    this.counts[reason ? "lost" : count]++;
    if (reason) log(`${job} is lost, not ${count}: ${reason}`);
  }

  /** Sets the end of the lease and the time of its next extension. */
  private setTimers(job: Job, from: number): void {
    if (this.held.get(job.delivery.receipt) !== job) return;
    job.timers.forEach(clearTimeout);
    const passed = performance.now() - from;
    job.timers = [
      setTimeout(() => void this.extend(job), job.lease / 2 - passed),
      setTimeout(() => this.expire(job), job.lease - passed),
    ];
  }

  private extendAll(): void {
    for (const job of this.held.values()) void this.extend(job);
  }

  private async extend(job: Job): Promise<void> {
    const extension = ++job.extensions;
    let sent = 0;
    const send = () => {
      sent = performance.now();
      // A short deadline: the next attempt must be in time as well.
      return this.extends.add(pb.ExtendItem.fromPartial({ receipt: job.delivery.receipt }), Math.min(this.timeout, job.lease / 4));
    };
    try {
      // A later extension of the job takes the place of this one.
      const { failure } = await repeat(send, () => this.held.has(job.delivery.receipt) && extension === job.extensions);
      if (!failure) this.setTimers(job, sent);
      else if (failure.error !== SettleError.UNAVAILABLE) this.lose(job.delivery.receipt, `Extend: ${SettleError[failure.error]}`);
    } catch {
      // The call is not to be repeated. The job may go on until the end of its lease.
    }
  }

  private async save(job: Job, checkpoint: Payload): Promise<void> {
    const { receipt } = job.delivery;
    const sent = performance.now();
    try {
      const failure = await this.extends.add(pb.ExtendItem.fromPartial({ receipt, checkpoint }), this.timeout);
      if (!failure) this.setTimers(job, sent);
      else if (failure.error === SettleError.UNAVAILABLE) log(`${job}: checkpoint is not saved: ${failure.message}`);
      else this.lose(receipt, `Extend: ${SettleError[failure.error]}`);
    } catch {
      // Logged with the call. The work goes on, and the next checkpoint takes the place of this one.
    }
  }

  /** Ends the work on a job whose lease is another worker's. One that is being settled may only seem so: its answer counts. */
  private lose(receipt: string, reason: string): void {
    const job = this.held.get(receipt);
    if (job && !job.settling) this.expire(job, reason);
    else if (job) clearTimeout(job.timers[0]);
  }

  private expire(job: Job, reason = "its lease is over"): void {
    if (!this.drop(job)) return;
    this.counts.lost++;
    log(`${job} is lost: ${reason}`);
    this.waiting.delete(job);
    job.controller.abort(new Error(reason));
  }

  private drop(job: Job): boolean {
    job.timers.forEach(clearTimeout);
    return this.held.delete(job.delivery.receipt);
  }
}
