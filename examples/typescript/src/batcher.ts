// Settles of many jobs in few calls, which are repeated until their answers are final.
import { setTimeout as sleep } from "node:timers/promises";
import { type ServiceError, status } from "@grpc/grpc-js";
import { SettleError, type SettleFailure } from "../stubs/ringq/v1/queue_service.js";
import { isRepeatable, isUnexplained, log, type Method, pause, retryDelay, unary } from "./ringq.js";

const GATHERING_MS = 5;
const MAX_ITEMS = 1_000;
const MAX_BYTES = 3 << 20;
const OF_ITEMS = [status.INVALID_ARGUMENT, status.PERMISSION_DENIED];

/** `sent` is the time of the answered call by the monotonic clock. Without `failure`, the item is settled. */
export type Answer = { failure: SettleFailure | undefined; sent: number; repeated: boolean };
/** What to send in place of an item that is refused, or that failed without an explanation for `patience` ms. */
export type Instead<T> = { patience: number; item(error: Error): T };
type Entry<T> = {
  item: T; timeout: number; wanted: () => boolean; instead: Instead<T> | undefined;
  resolve(answer: Answer): void; reject(error: Error): void;
};

/** Calls do not wait for each other: one that fails, hangs or is repeated delays no other. */
export class Batcher<T> {
  private entries: Entry<T>[] = [];
  private bytes = 0;
  private timer?: NodeJS.Timeout;

  constructor(private name: string, private codec: { encode(item: T): { finish(): Uint8Array } },
    private method: Method<{ items: T[] }, { failures: SettleFailure[] }>, private isAlone: () => boolean) {}

  /** Returns the final answer. Throws if the call must not be repeated, or if a repeat is not wanted any more. */
  add(item: T, timeout: number, wanted: () => boolean, instead?: Instead<T>): Promise<Answer> {
    const size = this.codec.encode(item).finish().length;
    if (this.entries.length === MAX_ITEMS || this.bytes + size > MAX_BYTES) this.flush();
    this.timer ??= setTimeout(() => this.flush(), this.isAlone() ? 0 : GATHERING_MS);
    this.bytes += size;
    return new Promise((resolve, reject) => this.entries.push({ item, timeout, wanted, instead, resolve, reject }));
  }

  /** Sends what was added. */
  private flush(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.bytes = 0;
    void this.send(this.entries.splice(0), 0);
  }

  /** `since` is the begin of unexplained failures of one entry, in a row. */
  private async send(entries: Entry<T>[], attempt: number, since = performance.now()): Promise<void> {
    if (!entries.length) return;
    const sent = performance.now();
    let again: Entry<T>[] = [];
    let unexplained = false;
    let reason = new Error("the server cannot reach the shards of these jobs");
    try {
      const timeout = Math.min(...entries.map((entry) => entry.timeout));
      const { failures } = await unary(this.method, { items: entries.map((entry) => entry.item) }, timeout);
      const failed = new Map(failures.map((failure) => [failure.index, failure]));
      again = entries.filter((_, index) => failed.get(index)?.error === SettleError.UNAVAILABLE);
      entries.forEach((entry, index) => {
        const failure = failed.get(index);
        if (failure?.error !== SettleError.UNAVAILABLE) entry.resolve({ failure, sent, repeated: attempt > 0 });
      });
    } catch (error) {
      reason = error as ServiceError;
      unexplained = isUnexplained(error as ServiceError);
      const isRefused = !isRepeatable(error as ServiceError);
      const only = entries.length === 1 ? entries[0]! : undefined;
      const isOfItem = isRefused && (error as ServiceError).code === status.INVALID_ARGUMENT;
      const isStuck = unexplained && performance.now() - since >= (only?.instead?.patience ?? Infinity);
      if (only?.instead && only.wanted() && (isOfItem || isStuck)) {
        return this.send([{ ...only, item: only.instead.item(reason), instead: undefined }], attempt);
      }
      if (isRefused) {
        // A bad item fails its whole call, and nothing is applied. Alone it fails no other.
        const split = !only && OF_ITEMS.includes((error as ServiceError).code);
        return entries.forEach((entry) => (split ? void this.send([entry], attempt) : entry.reject(reason)));
      }
      again = entries;
    }
    if (!again.length) return;
    const delay = retryDelay(reason as ServiceError) + pause(attempt, 100, 1_000);
    log(`${this.name} of ${again.length} jobs failed: ${reason.message}; again in ${Math.round(delay)} ms`);
    await sleep(delay);
    for (const entry of again) if (!entry.wanted()) entry.reject(reason);
    again = again.filter((entry) => entry.wanted());
    if (unexplained && again.length > 1 && this.name !== "Extend") { // Perhaps for its size, or for one item.
      void this.send(again.splice(again.length / 2), attempt + 1);
    }
    void this.send(again, attempt + 1, unexplained && entries.length === 1 ? since : undefined);
  }
}
