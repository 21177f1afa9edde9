"""The application: one task, which reports each job and its time to the harness."""

import os
import struct
import time

from celery import Celery

# Number of a job and its time of arrival in nanoseconds, on the clock that all processes share.
RECORD = struct.Struct("qq")

app = Celery("peers", broker=os.environ["PEERS_BROKER"])
app.conf.update(
    # At least once, like the other peers: the jobs of a killed worker come again.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    # The default of 4 is for long tasks.
    worker_prefetch_multiplier=100,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def job(body: str) -> None:
    """Writes less than a pipe takes in one piece."""
    os.write(_fifo(), RECORD.pack(int(body), time.monotonic_ns()))


def _fifo() -> int:
    global _open
    if _open < 0:
        _open = os.open(os.environ["PEERS_FIFO"], os.O_WRONLY)
    return _open


_open = -1
