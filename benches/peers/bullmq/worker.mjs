// A process of workers. It works between the commands of the harness, and reports each job and its time; all
// processes of a machine share the clock.
import { Worker } from "bullmq";

const CONCURRENCY = 100;

let came = [];

function send() {
  process.send(came);
  came = [];
}

/** Reports all jobs of this turn of the event loop together. */
async function work(job) {
  if (came.push([job.data, process.hrtime.bigint()]) === 1) setImmediate(send);
}

const worker = new Worker("jobs", work, {
  connection: { host: "127.0.0.1", port: Number(process.argv[2]) },
  concurrency: CONCURRENCY,
});
worker.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
await worker.waitUntilReady();
await worker.pause();
process.on("message", (word) => (word === "pause" ? worker.pause() : worker.resume()));
process.on("disconnect", () => process.exit());
process.send("ready");
