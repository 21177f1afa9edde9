"""Hashes a tree of files with ringq. Usage: hash_tree.py enqueue DIR | work OUT | check DIR OUT..."""
import grpc, hashlib, os, pathlib, random, sys, time
from ringq.v1 import queue_service_pb2 as api, queue_service_pb2_grpc, topic_service_pb2, topic_service_pb2_grpc

server = os.environ.get("RINGQ_SERVER", "http://127.0.0.1:7700").removeprefix("http://")
channel = grpc.insecure_channel(server, [("grpc.max_reconnect_backoff_ms", 1000)])
token = os.environ.get("RINGQ_TOKEN")
auth = [("authorization", f"Bearer {token}")] if token else []  # Metadata of each call.
jobs = queue_service_pb2_grpc.QueueServiceStub(channel)
get_stats = topic_service_pb2_grpc.TopicServiceStub(channel).GetTopicStats
held = []  # Receipts of jobs that this worker has written, but whose Ack the server has not confirmed.
last = [""]  # The id of its last stream: the next one adopts what it extends.

def files(directory):
    paths = pathlib.Path(directory).resolve(strict=True).rglob("*")
    return [str(p) for p in paths if p.is_file() and not p.is_symlink() and str(p).isprintable()]

def result(path):
    try:
        return f"{hashlib.file_digest(open(path, 'rb'), 'sha256').hexdigest()}  {path}\n".encode()
    except OSError as error:  # That is a result too: another attempt would find the same.
        return f"{error.strerror}  {path}\n".encode()

def enqueue(directory):
    specs = [{"topic": "files", "id": hashlib.sha256(path.encode()).hexdigest(), "payload": {"text": path},
              "retention": {"seconds": 3600}} for path in files(directory)]  # A repeat is recognised for this long.
    for i in range(0, len(specs), 500):
        if jobs.BatchEnqueue(api.BatchEnqueueRequest(jobs=specs[i:i + 500]), timeout=10, metadata=auth).failed_count:
            sys.exit("some jobs were refused; enqueue again: nothing doubles")
    print(f"{len(specs)} files enqueued")

def work(out):
    with open(out, "ab") as file:
        file.truncate(pathlib.Path(out).read_bytes().rfind(b"\n") + 1)  # Cuts off a line that a crash tore.
        if held:  # The stream broke: keep these jobs until their Ack, which goes with the next message.
            jobs.Extend(api.ExtendRequest(items=held), timeout=10, metadata=auth)
        while True:  # A server that drains ends the stream; the next one continues it.
            request = api.StreamRequest(topics=["files"], worker_id=out, max_in_flight=100,
                                        lease_duration={"seconds": 30}, continues_stream_id=last[0])
            for message in jobs.Stream(request, metadata=auth):
                last[0] = message.info.stream_id or last[0]
                file.writelines(result(job.payload.text) for job in message.deliveries)
                file.flush()
                os.fsync(file.fileno())
                held.extend({"receipt": job.receipt} for job in message.deliveries)
                if held:
                    jobs.Ack(api.AckRequest(items=held), timeout=10, metadata=auth)
                    held.clear()

def check(directory, *outs):
    request = topic_service_pb2.GetTopicStatsRequest(name="files")
    def stats():
        return get_stats(request, timeout=10, metadata=auth).stats
    while (now := stats()).scheduled + now.ready + now.running + now.backoff:
        time.sleep(0.5)  # The leases of a killed worker may have to run out first.
    lines, wanted = [line for out in outs for line in open(out, "rb")], set(map(result, files(directory)))
    print(f"{len(wanted)} files, {len(lines)} lines, {len(wanted ^ set(lines))} missing or wrong; "
          f"{now.enqueued_total} enqueued, {now.succeeded_total} succeeded, {now.dead} dead")
    if wanted != set(lines) or not now.enqueued_total == now.succeeded_total == len(wanted):
        sys.exit("the books do not balance")

name, *arguments = sys.argv[1:] or sys.exit(__doc__)
while True:  # While the server is away, a command starts over: ids and receipts make that safe.
    try:
        sys.exit({"enqueue": enqueue, "work": work, "check": check}[name](*arguments))
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            sys.exit(f"{name}: {error.details()}")
        print(f"{name}: {error.details()}; trying again", file=sys.stderr)
        time.sleep(random.uniform(0.1, 1))
