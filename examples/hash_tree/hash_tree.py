"""Hashes a tree of files with ringq: enqueue DIR | work OUT | check DIR OUT... (see README.md)."""
import fileinput, hashlib, os, pathlib, random, signal, sys, time
import grpc
from ringq.v1 import queue_service_pb2 as api, queue_service_pb2_grpc, topic_service_pb2, topic_service_pb2_grpc

# For enqueue and check: gRPC repeats their calls, with jitter, while the server is away.
RETRY = """{"methodConfig": [{"waitForReady": true, "timeout": "60s", "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.5s", "maxBackoff": "2s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}, "name": [{"service": "ringq.v1.TopicService"},
    {"service": "ringq.v1.QueueService", "method": "BatchEnqueue"}]}]}"""
host = os.environ.get("RINGQ_SERVER", "http://127.0.0.1:7700").removeprefix("http://")
channel = grpc.insecure_channel(host, [("grpc.service_config", RETRY), ("grpc.max_reconnect_backoff_ms", 1000)])
jobs = queue_service_pb2_grpc.QueueServiceStub(channel)
topics = topic_service_pb2_grpc.TopicServiceStub(channel)

def files(directory):
    paths = pathlib.Path(directory).absolute().rglob("*")
    return sorted(str(p) for p in paths if p.is_file() and not p.is_symlink() and str(p).isprintable())

def line(path):
    try:
        with open(path, "rb") as file:
            return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path}\n".encode()
    except OSError as error:  # That is a result too: another attempt would find the same.
        return f"{error.strerror}  {path}\n".encode()

def enqueue(directory):
    specs = [{"topic": "hash-tree", "id": hashlib.sha256(path.encode()).hexdigest(), "payload": {"text": path},
              "retention": {"seconds": 3600}} for path in files(directory)]
    for i in range(0, len(specs), 500):
        if failed := jobs.BatchEnqueue(api.BatchEnqueueRequest(jobs=specs[i:i + 500])).failed_count:
            sys.exit(f"{failed} jobs refused; enqueue again: nothing doubles")
    print(f"{len(specs)} files enqueued")

def work(out):
    held, stopping = [], []  # held: written, but the server has not confirmed the Ack.
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    request = api.StreamRequest(topics=["hash-tree"], worker_id=out, max_in_flight=100, max_batch=50,
                                heartbeat_interval={"seconds": 1})  # SIGTERM is seen at the next message.
    with open(out, "a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)  # Cuts off a line that a crash has torn.
        while not stopping:
            try:
                if held:  # The stream broke: keep these jobs until their Ack comes through.
                    jobs.Extend(api.ExtendRequest(items=held), timeout=10)
                for message in jobs.Stream(request):
                    file.writelines(line(job.payload.text) for job in message.deliveries)
                    file.flush()
                    os.fsync(file.fileno())
                    held += [{"receipt": job.receipt} for job in message.deliveries]
                    if held:
                        jobs.Ack(api.AckRequest(items=held), timeout=10)
                        held = []
                    if stopping:
                        break
            except grpc.RpcError as error:
                print(f"{out}: {error.code().name}, trying again", file=sys.stderr)
            time.sleep(random.uniform(0.1, 0.5))

def check(directory, *outs):
    for _ in range(1200):  # The leases of a killed worker may have to run out first.
        stats = topics.GetTopicStats(topic_service_pb2.GetTopicStatsRequest(name="hash-tree")).stats
        left = stats.scheduled + stats.ready + stats.running + stats.backoff
        if not left:
            break
        time.sleep(0.5)
    lines, wanted = list(fileinput.input(outs, mode="rb")), set(map(line, files(directory)))
    found = set(lines)
    print(f"{len(wanted)} files, {len(lines) - len(found)} repeated, {len(wanted - found)} missing, "
          f"{len(found - wanted)} wrong; {stats.enqueued_total} enqueued, {stats.succeeded_total} succeeded, "
          f"{left} left, {stats.dead} dead")
    if found != wanted or left or not stats.enqueued_total == stats.succeeded_total == len(wanted):
        sys.exit("the books do not balance")

if __name__ == "__main__":
    {"enqueue": enqueue, "work": work, "check": check}[sys.argv[1]](*sys.argv[2:])
