// The worker around a handler: the eight duties of docs/workers.md. To be copied as it is.
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { type ClientReadableStream, type ServiceError, status } from "@grpc/grpc-js";
import type { Payload } from "../stubs/ringq/v1/job.js";
import * as pb from "../stubs/ringq/v1/queue_service.js";
import { Batcher, type Instead } from "./batcher.js";
import { connect, log, metadata, milliseconds, pause, retryDelay, setting } from "./ringq.js";

const LONGEST_PAUSE = 3_000;
const FIRST_MESSAGE = 20_000; // It comes at once, but the connection may have to be made first.
const ARRIVAL_TIME = 200; // A stopped worker reads on: a job that never arrives would wait for the orphan_grace, as after a crash.
const HOPELESS = [status.UNAUTHENTICATED, status.PERMISSION_DENIED, status.INVALID_ARGUMENT];

/** Thrown by a handler for a job that can never succeed. Any other error is a failed attempt. */
export class DeadLetter extends Error {}

/** Does the work of one job and returns its result. */
export type Handler = (job: Job) => Promise<Payload | undefined>;

/** Anything can be thrown, even an object whose text throws. */
function textOf(error: unknown): string {
  try {
    return String(error);
  } catch {
    return "an error without a text";
  }
}

export class Job {
  readonly controller = new AbortController();
  /** Aborted when the job is another worker's, or this one stops: give it to all that the handler waits for. */
  readonly signal = this.controller.signal;
  settling = false;
  extensions = 0;
  timers: NodeJS.Timeout[] = [];

  constructor(readonly delivery: pb.Delivery, private readonly extend: (job: Job, checkpoint: Payload) => Promise<void>) {}

  /** The producer's trace context: send it as header `traceparent` with the calls that the handler makes. */
  get traceparent(): string {
    return this.delivery.headers["traceparent"] ?? "";
  }

  /** Saves a checkpoint, which the next delivery of the job has. Throws if the job is another worker's by now. */
  async save(checkpoint: Payload): Promise<void> {
    await this.extend(this, checkpoint);
    this.signal.throwIfAborted();
  }

  toString = (): string => `job ${this.delivery.topic}/${this.delivery.id} trace ${this.traceparent.split("-")[1] ?? "none"}`;
}

export class Worker {
  private readonly client = connect();
  /** If all jobs in hand are being settled, no other settle comes that could share a call. A new job can come before the answer. */
  private readonly isAlone = () => ![...this.held.values()].some((job) => !job.settling);
  private readonly acks = new Batcher<pb.AckItem>("Ack", pb.AckItem, this.client.ack.bind(this.client), this.isAlone);
  private readonly nacks = new Batcher<pb.NackItem>("Nack", pb.NackItem, this.client.nack.bind(this.client), this.isAlone);
  private readonly extensions = new Batcher<pb.ExtendItem>("Extend", pb.ExtendItem, this.client.extend.bind(this.client), () => this.held.size < 2);
  private readonly timeout = setting("RINGQ_CALL_TIMEOUT", 10);
  private readonly concurrency = Number(process.env["RINGQ_CONCURRENCY"] ?? 4);
  private readonly counts = { acked: 0, nacked: 0, released: 0, lost: 0 };
  /** The jobs whose leases this worker has, by receipt. Each one waits, runs or is being settled. */
  private readonly held = new Map<string, Job>();
  private readonly waiting = new Set<Job>();
  private readonly running = new Set<Job>();
  private readonly tasks = new Set<Promise<void>>();
  private readonly stopping = new AbortController();
  private stream?: ClientReadableStream<pb.StreamResponse>;
  private arrival?: Promise<void>;
  private orphanGrace = 5_000;
  /** The longest an Extend may take: less without a stream. */
  private extendTimeout = Infinity;

  constructor(private readonly handler: Handler) {}

  /** Opens one stream after the other until `stop`. */
  async run(): Promise<void> {
    const { RINGQ_TOPICS = "examples", RINGQ_WORKER_ID = `${hostname()}-${process.pid}`, RINGQ_CREDIT = 16 } = process.env;
    const lease = setting("RINGQ_LEASE", 30);
    const request = pb.StreamRequest.fromPartial({
      topics: RINGQ_TOPICS.split(","), workerId: RINGQ_WORKER_ID, maxInFlight: Number(RINGQ_CREDIT),
      leaseDuration: { seconds: Math.floor(lease / 1000), nanos: Math.round((lease % 1000) * 1e6) },
    });
    for (let attempt = 0, delay = 0; !this.stopping.signal.aborted; ) {
      let info: pb.StreamInfo | undefined;
      const begin = performance.now();
      const stream = (this.stream = this.client.stream(request, metadata()));
      const cancel = () => (log("the stream is silent"), stream.cancel());
      let watchdog = setTimeout(cancel, FIRST_MESSAGE);
      try {
        for await (const message of stream as AsyncIterable<pb.StreamResponse>) {
          if (this.stream !== stream) break;
          if (message.info) {
            info = message.info;
            log(`stream ${info.streamId} is open, ${this.held.size} jobs in hand`);
            // A revocation that was due between two streams does not come. The answer to an Extend replaces it.
            if (request.continuesStreamId) this.extendAll();
            this.extendTimeout = Infinity;
            this.orphanGrace = milliseconds(info.orphanGrace) || 5_000;
            request.continuesStreamId = info.streamId;
            attempt = 0;
          }
          clearTimeout(watchdog);
          watchdog = setTimeout(cancel, 3 * (milliseconds(info?.heartbeatInterval) ?? FIRST_MESSAGE));
          message.deliveries.forEach((delivery) => this.take(delivery));
          for (const { receipt, reason } of message.revocations) this.lose(this.held.get(receipt), `revoked, reason ${reason}`);
          if (message.draining) log("the server drains");
        }
        log("the stream has ended");
        // Short streams, one after the other, would be a storm.
        delay = info && performance.now() - begin > 1_000 ? 0 : pause(attempt++, 250, LONGEST_PAUSE);
      } catch (error) {
        if (this.stream !== stream) return clearTimeout(watchdog); // Cancelled by `stop`.
        const { code, message } = error as ServiceError;
        if (info) this.extendOrphans();
        const least = HOPELESS.includes(code) ? LONGEST_PAUSE : Math.min(retryDelay(error as ServiceError), 30_000);
        delay = least + pause(attempt++, 250, least ? 1_000 : LONGEST_PAUSE);
        log(`the stream has failed: ${message}; the next one in ${Math.round(delay)} ms`);
      }
      clearTimeout(watchdog);
      await sleep(delay, undefined, { signal: this.stopping.signal }).catch(() => {});
    }
  }

  /** Finishes the running jobs and releases the others, also those that are on their way here. */
  async stop(): Promise<void> {
    this.stopping.abort();
    await (this.arrival = sleep(ARRIVAL_TIME));
    const stream = this.stream;
    this.stream = undefined;
    stream?.cancel();
    this.waiting.forEach((job) => this.release(job));
    this.extendOrphans();
    await this.settled(setting("RINGQ_GRACE", 25));
    this.running.forEach((job) => this.release(job));
    await this.settled(this.timeout);
    this.counts.lost += this.held.size; // Not settled in time.
    log(`stopped: ${Object.entries(this.counts).map(([name, count]) => `${name}=${count}`).join(" ")}`);
  }

  private async settled(most: number): Promise<void> {
    const timer = sleep(most, "over");
    while (this.tasks.size && (await Promise.race([Promise.all(this.tasks), timer])) !== "over");
  }

  private start(task: Promise<void>): void {
    this.tasks.add(task);
    void task.finally(() => this.tasks.delete(task));
  }

  private take(delivery: pb.Delivery): void {
    if (this.held.has(delivery.receipt)) return;
    const job = new Job(delivery, (job, checkpoint) => this.extend(job, checkpoint));
    this.held.set(delivery.receipt, job);
    this.waiting.add(job);
    this.setTimers(job, performance.now());
    this.runWaiting();
  }

  private runWaiting(): void {
    for (const job of this.waiting) {
      if (this.stopping.signal.aborted || this.running.size >= this.concurrency) return;
      this.waiting.delete(job);
      this.running.add(job);
      this.start(this.handle(job));
    }
  }

  private async handle(job: Job): Promise<void> {
    let settle: () => Promise<void>;
    try {
      const result = await this.handler(job);
      settle = () => this.ack(job, result);
    } catch (error) {
      const action = error instanceof DeadLetter ? pb.NackAction.DEAD_LETTER : pb.NackAction.RETRY;
      settle = () => this.nack(job, action, textOf(error));
    }
    this.running.delete(job);
    this.runWaiting();
    // A job that was lost or released meanwhile is no longer this worker's.
    if (this.held.get(job.delivery.receipt) === job && !job.settling) await settle();
  }

  private release(job: Job): void {
    this.waiting.delete(job);
    this.start(this.nack(job, pb.NackAction.RELEASE));
    job.controller.abort(new Error("the worker stops"));
  }

  /** Finished work must not run again for its result: if the result is bad, the job is acked without it. */
  private ack(job: Job, result?: Payload): Promise<void> {
    const bare = pb.AckItem.fromPartial({ receipt: job.delivery.receipt });
    if (result === undefined || result === null) return this.settle(job, "acked", this.acks, bare);
    const item = { ...bare, result };
    try {
      if (typeof result !== "object") throw new TypeError("it is not a Payload");
      pb.AckItem.encode(item).finish();
    } catch (error) {
      log(`${job} is acked without its result: ${textOf(error)}`);
      return this.settle(job, "acked", this.acks, bare);
    }
    // After a whole lease of failures: its Extends have passed meanwhile, so the result may be the cause.
    const patience = this.leaseOf(job);
    return this.settle(job, "acked", this.acks, item, {
      patience,
      item: (error) => {
        log(`${job} is acked without its result: ${error.message}`);
        return bare;
      },
    });
  }

  private nack(job: Job, action: pb.NackAction, text = ""): Promise<void> {
    if (text) log(`${job} failed: ${text}`);
    const error = text.slice(0, 1_000); // The server takes 4 KiB.
    const item = pb.NackItem.fromPartial({ receipt: job.delivery.receipt, action, error });
    return this.settle(job, action === pb.NackAction.RELEASE ? "released" : "nacked", this.nacks, item);
  }

  private async settle<T>(
    job: Job, count: "acked" | "nacked" | "released", batcher: Batcher<T>, item: T, instead?: Instead<T>,
  ): Promise<void> {
    job.settling = true; // Its lease goes on being extended until the settle is through.
    await this.arrival; // Each settle would bring another job.
    let reason: string | undefined;
    try {
      const { failure, repeated } = await batcher.add(item, this.timeout, () => this.held.has(job.delivery.receipt), instead);
      // After a repeated Ack, the job is gone because the first one was applied.
      const done = !failure || (failure.error === pb.SettleError.NOT_FOUND && repeated && count === "acked");
      if (!done) reason = `${pb.SettleError[failure.error]} ${failure.message}`;
    } catch (error) {
      reason = (error as Error).message;
    }
    if (reason) this.lose(job, reason, true);
    else if (this.drop(job)) this.counts[count]++;
  }

  private extendAll(): void {
    this.held.forEach((job) => void this.extend(job));
  }

  /** Without a stream the server releases these jobs after the orphan_grace: an Extend that hangs must end in time for a repeat. */
  private extendOrphans(): void {
    this.extendTimeout = this.orphanGrace / 2;
    this.extendAll();
  }

  /** Extends a lease, until it succeeds or a later call does it. With a checkpoint it is tried once. */
  private async extend(job: Job, checkpoint?: Payload): Promise<void> {
    const { receipt } = job.delivery;
    const extension = checkpoint ? NaN : ++job.extensions;
    const wanted = () => extension === job.extensions && this.held.get(receipt) === job;
    try {
      const item = pb.ExtendItem.fromPartial({ receipt, checkpoint });
      // The deadline is short enough for a repeat before the lease is over.
      const timeout = Math.min(this.timeout, this.leaseOf(job) / 4, this.extendTimeout);
      const { failure, sent } = await this.extensions.add(item, timeout, wanted);
      if (failure) this.lose(job, `Extend: ${pb.SettleError[failure.error]}`);
      else this.setTimers(job, sent);
    } catch (error) {
      if (checkpoint) log(`${job}: a checkpoint is not saved: ${(error as Error).message}`);
    }
  }

  private leaseOf = (job: Job): number => milliseconds(job.delivery.leaseDuration) ?? 30_000;

  /** Sets the next extension and the end of the lease, which began at `from` by the monotonic clock. */
  private setTimers(job: Job, from: number): void {
    if (this.held.get(job.delivery.receipt) !== job) return;
    job.timers.forEach(clearTimeout);
    const end = from + this.leaseOf(job) - performance.now();
    job.timers = [
      setTimeout(() => void this.extend(job), end - this.leaseOf(job) / 2),
      setTimeout(() => this.lose(job, "its lease is over", true), end),
    ];
  }

  /** Stops the work on a job that is no longer this worker's. */
  private lose(job: Job | undefined, reason: string, final = false): void {
    if (!job) return;
    clearTimeout(job.timers[0]);
    // If an Ack is under way, it may have been applied, and its answer lost: then the answer to its repeat decides.
    if ((job.settling && !final) || !this.drop(job)) return;
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
