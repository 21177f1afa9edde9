// The example worker. A team replaces `work`.
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Payload } from "../stubs/ringq/v1/job.js";
import { DeadLetter, type Job, Worker } from "./ringq_worker.js";

type Plan = { steps?: number; step_ms?: number; fail_until?: number; dead?: boolean };

const read = (payload?: Payload) => payload?.text ?? payload?.data?.toString("utf8") ?? "";

const json = (value: object): Payload => Payload.fromPartial({ text: JSON.stringify(value) });

function plan(job: Job): Plan {
  let value: unknown;
  try {
    value = JSON.parse(read(job.delivery.payload) || "{}");
  } catch (error) {
    throw new DeadLetter(`the payload is not JSON: ${(error as Error).message}`);
  }
  if (typeof value !== "object" || Array.isArray(value)) throw new DeadLetter("the payload is not a JSON object");
  return { ...value };
}

async function work(job: Job): Promise<Payload> {
  const { topic, id, fence, attempt, checkpoint } = job.delivery;
  const { steps = 0, step_ms = 100, fail_until = 0, dead = false } = plan(job);
  if (dead) throw new DeadLetter("the payload asks for it");
  const from: number = checkpoint ? (JSON.parse(read(checkpoint)).step ?? 0) : 0;
  for (let step = from + 1; step <= steps; step++) {
    await sleep(step_ms, undefined, { signal: job.signal });
    if (attempt <= fail_until) break;
    if (step < steps) await job.save(json({ step }));
  }
  if (attempt <= fail_until) throw new Error(`attempt ${attempt} fails, as the payload asks`);

  // A job can come twice. A database refuses the older of two workers: UPDATE … SET fence = $1 … WHERE fence < $1.
  const line = JSON.stringify({ id, topic, fence, attempt, steps, from, by: "typescript" });
  if (process.env["RINGQ_LEDGER"]) appendFileSync(process.env["RINGQ_LEDGER"], `${line}\n`);
  return json({ steps, by: "typescript" });
}

const worker = new Worker(work);
for (const signal of ["SIGTERM", "SIGINT"] as const) {
  process.once(signal, () => void worker.stop().then(() => process.exit(0)));
}
await worker.run();
