// The work of the comparison on BullMQ: addBulk for many jobs, workers in processes of their own.
// Called as the Go harnesses are, see harness/harness.go.
import { fork } from "node:child_process";
import { availableParallelism } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { Queue } from "bullmq";

const PRODUCERS = 50; // in flight when one call enqueues one job
const BULK = { lanes: 10, jobs: 100 };
const PROCESSES = Math.max(1, availableParallelism() - 1); // of workers; a core is for Redis
const PAUSE_MS = 5; // between two jobs to an idle worker
const LOOK_MS = 1; // between two checks whether the broker has removed the last acked jobs
const WARM_UP = 20; // divisor of the jobs that go ahead untimed

const [port, scenario, jobs, bytes] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port) };
const queue = new Queue("jobs", { connection });
// Finished jobs are kept for ever by default.
const opts = { removeOnComplete: true, removeOnFail: true };
const seconds = (from) => (performance.now() - from) / 1e3;

/** Counts of every job by its number. */
class Books {
  given = 0;
  delivered = 0;
  doubled = 0;
  arrived = () => {};

  constructor(count) {
    this.count = count;
    this.seen = new Uint8Array(count);
    this.all = new Promise((resolve) => (this.finish = resolve));
  }

  /** The bodies of the next jobs, fewer at the end. */
  next(count) {
    const from = this.given;
    this.given = Math.min(this.count, from + count);
    return Array.from({ length: this.given - from }, (_, i) =>
      String(from + i).padStart(Number(bytes), "0"),
    );
  }

  deliver(body, at) {
    if (body.length !== Number(bytes)) throw new Error(`a body came back with ${body.length} bytes`);
    const number = Number(body);
    if (this.seen[number]++) return this.doubled++;
    this.arrived(at);
    if (++this.delivered === this.count) this.finish();
  }
}

/** The worker processes, which run before anything is timed. */
class Workers {
  static async start() {
    const children = Array.from({ length: PROCESSES }, () =>
      fork(new URL("worker.mjs", import.meta.url), [port], { serialization: "advanced" }),
    );
    await Promise.all(children.map((child) => new Promise((ready) => child.once("message", ready))));
    return new Workers(children);
  }

  constructor(children) {
    this.children = children;
    for (const child of children) {
      child.on("message", (came) => came.forEach(([body, at]) => this.books.deliver(body, at)));
      child.on("exit", (code) => code && process.exit(code));
    }
  }

  send(word) {
    for (const child of this.children) child.send(word);
  }
}

const workers = await Workers.start();

/** Waits until every job was delivered and the broker reports that all of them are acked. */
async function settled(books) {
  await books.all;
  while (await left()) await sleep(LOOK_MS);
}

async function left() {
  const counts = await queue.getJobCounts();
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

const side = (times, work) => Promise.all(Array.from({ length: times }, work));

async function drain(books) {
  workers.send("resume");
  await settled(books);
  workers.send("pause");
}

function bulk(books) {
  return side(BULK.lanes, async () => {
    for (let bodies; (bodies = books.next(BULK.jobs)).length; ) {
      await queue.addBulk(bodies.map((data) => ({ name: "job", data, opts })));
    }
  });
}

const scenarios = {
  async unary(books) {
    const start = performance.now();
    await side(PRODUCERS, async () => {
      for (let bodies; (bodies = books.next(1)).length; ) await queue.add("job", bodies[0], opts);
    });
    const enqueue_s = seconds(start);
    await drain(books);
    return { enqueue_s };
  },
  async life(books) {
    const start = performance.now();
    await bulk(books);
    const enqueued = performance.now();
    await drain(books);
    return { enqueue_s: (enqueued - start) / 1e3, consume_s: seconds(enqueued), total_s: seconds(start) };
  },
  async both(books) {
    const start = performance.now();
    workers.send("resume");
    await bulk(books);
    await settled(books);
    workers.send("pause");
    return { total_s: seconds(start) };
  },
  async idle(books) {
    workers.send("resume");
    const took = [];
    for (let bodies; (bodies = books.next(1)).length; ) {
      await sleep(PAUSE_MS);
      const arrived = new Promise((resolve) => (books.arrived = resolve));
      const start = process.hrtime.bigint();
      await queue.add("job", bodies[0], opts);
      took.push(Number((await arrived) - start) / 1e3);
    }
    await settled(books);
    workers.send("pause");
    took.sort((a, b) => a - b);
    const rank = (part) => took[Math.floor(part * (took.length - 1))];
    return { p50_us: rank(0.5), p99_us: rank(0.99) };
  },
};

const run = async (count) => {
  const books = (workers.books = new Books(count));
  const figures = await scenarios[scenario](books);
  const { delivered, doubled } = books;
  return { delivered, doubled, left: await left(), ...figures };
};

await run(Math.max(1, Math.floor(Number(jobs) / WARM_UP)));
console.log(JSON.stringify(await run(Number(jobs))));
process.exit();
