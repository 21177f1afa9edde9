"""The work of the comparison on Celery, over Redis. Called as the Go harnesses are, see harness/harness.go.

Celery has no call for many jobs (a group sends one by one as well), so in bulk is one by one, too. Python
runs one thread at a time, so producers are processes, and so are the workers: one per core.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Pool
from multiprocessing.pool import AsyncResult
from pathlib import Path

HERE = Path(__file__).parent
PRODUCERS = WORKERS = len(os.sched_getaffinity(0))
# Pause between two jobs to an idle worker, and interval of checks whether the broker has removed the last.
PAUSE_S, LOOK_S = 0.005, 0.001
# Divisor of the jobs that go ahead untimed.
WARM_UP = 20
# Time limit of an answer of the worker, which normally comes at once.
REPLY_S = 10.0
QUEUE = "jobs"

port, scenario, jobs, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
scratch = tempfile.TemporaryDirectory()
fifo_path = os.path.join(scratch.name, "fifo")
os.mkfifo(fifo_path)
os.environ.update(PEERS_BROKER=f"redis://127.0.0.1:{port}/0", PEERS_FIFO=fifo_path)

import tasks  # noqa: E402  It reads the environment variables.


def body(number: int) -> str:
    return str(number).zfill(size)


def enqueue(numbers: range) -> None:
    with tasks.app.producer_pool.acquire() as producer:
        for number in numbers:
            tasks.job.apply_async((body(number),), queue=QUEUE, producer=producer)


# Forked before a connection exists that they could share.
producers = Pool(PRODUCERS)
# Opened for writing as well, so that reads never reach the end.
fifo = os.fdopen(os.open(fifo_path, os.O_RDWR), "rb")
redis = tasks.app.connection().default_channel.client


class Books:
    """Counts of every job by its number."""

    def __init__(self, count: int) -> None:
        self.count, self.seen, self.delivered, self.doubled = count, bytearray(count), 0, 0

    def take(self) -> int:
        """Waits for a job, and returns its time of arrival."""
        number, at = tasks.RECORD.unpack(fifo.read(tasks.RECORD.size))
        self.delivered += not self.seen[number]
        self.doubled += self.seen[number]
        self.seen[number] = 1
        return at

    def settled(self) -> None:
        """Waits until every job was delivered and the broker reports that all are acked."""
        while self.delivered < self.count:
            self.take()
        while left():
            time.sleep(LOOK_S)


def left() -> int:
    return redis.llen(QUEUE) + redis.hlen("unacked")


def produce(count: int) -> AsyncResult:
    """Starts to enqueue this number of jobs, in all producers side by side."""
    return producers.map_async(enqueue, [range(lane, count, PRODUCERS) for lane in range(PRODUCERS)])


def listen(on: bool) -> None:
    """Workers that run before anything is timed, and take jobs on command."""
    call = tasks.app.control.add_consumer if on else tasks.app.control.cancel_consumer
    if not call(QUEUE, reply=True, timeout=REPLY_S, limit=1):
        sys.exit("the worker does not answer")


def life(books: Books) -> dict[str, float]:
    start = time.perf_counter()
    produce(books.count).get()
    enqueued = time.perf_counter()
    listen(True)
    books.settled()
    end = time.perf_counter()
    return {"enqueue_s": enqueued - start, "consume_s": end - enqueued, "total_s": end - start}


def both(books: Books) -> dict[str, float]:
    start = time.perf_counter()
    listen(True)
    producing = produce(books.count)
    books.settled()
    producing.get()
    return {"total_s": time.perf_counter() - start}


def idle(books: Books) -> dict[str, float]:
    listen(True)
    took = []
    for number in range(books.count):
        time.sleep(PAUSE_S)
        start = time.monotonic_ns()
        enqueue(range(number, number + 1))
        took.append((books.take() - start) / 1e3)
    books.settled()
    took.sort()
    return {"p50_us": took[(len(took) - 1) // 2], "p99_us": took[99 * (len(took) - 1) // 100]}


def run(work: Callable[[Books], dict[str, float]], count: int) -> dict[str, float]:
    books = Books(count)
    figures = work(books)
    listen(False)
    return {"delivered": books.delivered, "doubled": books.doubled, "left": left(), **figures}


def main() -> None:
    work = {"unary": life, "life": life, "both": both, "idle": idle}[scenario]
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    words = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", str(WORKERS), "-Q", "none", *options]
    worker = subprocess.Popen(words, cwd=HERE, stdout=sys.stderr)
    try:
        while not tasks.app.control.ping(timeout=REPLY_S, limit=1):
            pass
        run(work, max(1, jobs // WARM_UP))
        print(json.dumps(run(work, jobs)))
    finally:
        worker.terminate()
        worker.wait()


main()
