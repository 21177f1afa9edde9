"""A worker: its handler, and the settings of the machinery in ringq_worker.py. Replace `handle` by your own."""
import asyncio
import json
import logging
import os
import socket
import sys

from ringq_client import setting
from ringq_worker import DeadLetter, Worker


async def handle(job):
    """Works step by step, from the checkpoint on. The text that it returns is the result; an exception is a failure."""
    delivery = job.delivery
    try:
        payload = json.loads(delivery.payload.text or delivery.payload.data or "{}")
        steps, pause = int(payload.get("steps", 0)), float(payload.get("step_ms", 0)) / 1000
        fail_until, dead = int(payload.get("fail_until", 0)), payload.get("dead")
    except (ValueError, TypeError, AttributeError) as error:
        raise DeadLetter(f"the payload is not a JSON object of this kind: {error}") from error
    if dead:
        raise DeadLetter("the payload asks for a dead letter")
    start = json.loads(delivery.checkpoint.text or "{}").get("step", 0)
    for step in range(start + 1, steps + 1):
        await asyncio.sleep(pause)  # The work.
        if delivery.attempt <= fail_until:
            raise RuntimeError(f"attempt {delivery.attempt} fails, as the payload asks")
        if step < steps:
            await job.save(json.dumps({"step": step}))
    write_ledger({"id": delivery.id, "topic": delivery.topic, "fence": delivery.fence, "attempt": delivery.attempt,
                  "steps": steps, "from": start, "by": "python"})
    return json.dumps({"steps": steps, "by": "python"}, separators=(",", ":"))


def write_ledger(entry):
    """The effect of a job. A job can come twice: in a database, let the fence refuse the writer that lost its lease:
    UPDATE orders SET state = 'paid', fence = $1 WHERE id = $2 AND fence < $1"""
    if path := setting("LEDGER"):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        os.close(file)


async def main():
    worker = Worker(
        handle, topics=setting("TOPICS", "examples").split(","),
        worker_id=setting("WORKER_ID", f"{socket.gethostname()}-{os.getpid()}"), credit=int(setting("CREDIT", "16")),
        concurrency=int(setting("CONCURRENCY", "4")), lease=float(setting("LEASE", "30")),
        grace=float(setting("GRACE", "25")))
    code = 1
    try:
        await worker.run()
        code = 0
    except Exception:
        logging.exception("the worker failed")
    finally:
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)  # `asyncio.run` would wait for each thread of `asyncio.to_thread`, also for one that hangs.


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asyncio.run(main())
