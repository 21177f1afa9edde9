"""Hashes a tree of files with ringq. Usage: hash_tree.py enqueue DIR | work OUT | check DIR OUT..."""
import hashlib, os, pathlib, random, sys, time
import grpc
from ringq.v1 import queue_service_pb2 as api, queue_service_pb2_grpc, topic_service_pb2, topic_service_pb2_grpc

channel = grpc.insecure_channel(os.environ.get("RINGQ_SERVER", "http://127.0.0.1:7700").removeprefix("http://"))
jobs = queue_service_pb2_grpc.QueueServiceStub(channel)
topics = topic_service_pb2_grpc.TopicServiceStub(channel)
held = []  # Receipts of jobs that this worker has written, but whose Ack the server has not confirmed.

def files(directory):
    paths = pathlib.Path(directory).resolve(strict=True).rglob("*")
    return [str(p) for p in paths if p.is_file() and not p.is_symlink() and str(p).isprintable()]

def line(path):
    try:
        with open(path, "rb") as file:
            return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path}\n".encode()
    except OSError as error:  # That is a result too: another attempt would find the same.
        return f"{error.strerror}  {path}\n".encode()

def enqueue(directory):
    specs = [{"topic": "hash-tree", "id": hashlib.sha256(path.encode()).hexdigest(), "payload": {"text": path},
              "retention": {"seconds": 3600}} for path in files(directory)]  # So long a repeat finds the id.
    for i in range(0, len(specs), 500):
        if jobs.BatchEnqueue(api.BatchEnqueueRequest(jobs=specs[i:i + 500]), timeout=10).failed_count:
            sys.exit("some jobs were refused; enqueue again: nothing doubles")
    print(f"{len(specs)} files enqueued")

def work(out):
    request = api.StreamRequest(topics=["hash-tree"], worker_id=out, max_in_flight=100, max_batch=50)
    with open(out, "ab") as file:
        file.truncate(pathlib.Path(out).read_bytes().rfind(b"\n") + 1)  # Cuts off a line that a crash has torn.
        if held:  # The stream broke: keep these jobs until their Ack, which goes with the next message.
            jobs.Extend(api.ExtendRequest(items=held), timeout=10)
        for message in jobs.Stream(request):
            file.writelines(line(job.payload.text) for job in message.deliveries)
            file.flush()
            os.fsync(file.fileno())
            held.extend({"receipt": job.receipt} for job in message.deliveries)
            if held:
                jobs.Ack(api.AckRequest(items=held), timeout=10)
                held.clear()

def check(directory, *outs):
    request = topic_service_pb2.GetTopicStatsRequest(name="hash-tree")
    while (stats := topics.GetTopicStats(request).stats).scheduled + stats.ready + stats.running + stats.backoff:
        time.sleep(0.5)  # The leases of a killed worker may have to run out first.
    lines = [line for out in outs for line in open(out, "rb")]
    wanted, found = set(map(line, files(directory))), set(lines)
    print(f"{len(wanted)} files, {len(lines) - len(found)} repeated, {len(wanted ^ found)} missing or wrong; "
          f"{stats.enqueued_total} enqueued, {stats.succeeded_total} succeeded, {stats.dead} dead")
    if found != wanted or not stats.enqueued_total == stats.succeeded_total == len(wanted):
        sys.exit("the books do not balance")

