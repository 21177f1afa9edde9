"""Hashes a tree of files with ringq: enqueue DIR | work OUT | check DIR OUT... (see README.md)."""
import hashlib, os, queue, random, signal, sys, threading, time
import grpc
from google.protobuf.duration_pb2 import Duration
from ringq.v1 import job_pb2, queue_service_pb2 as api, queue_service_pb2_grpc
from ringq.v1 import topic_service_pb2, topic_service_pb2_grpc

TOPIC, AWAY = "hash-tree", (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
server = os.environ.get("RINGQ_SERVER", "http://127.0.0.1:7700").removeprefix("http://")
channel = grpc.insecure_channel(server, [("grpc.max_reconnect_backoff_ms", 1000)])
jobs = queue_service_pb2_grpc.QueueServiceStub(channel)
topics = topic_service_pb2_grpc.TopicServiceStub(channel)


def call(method, request):
    """Repeats a call while the server is away; every call made through here is safe to repeat."""
    for _ in range(200):
        try:
            return method(request, timeout=10)
        except grpc.RpcError as error:
            if error.code() not in AWAY:
                raise
        time.sleep(random.uniform(0.1, 0.5))
    sys.exit("the server stays away")


def files(directory):
    """Every regular file whose path is a line of plain text."""
    for folder, _, names in os.walk(os.path.abspath(directory)):
        for path in (os.path.join(folder, name) for name in names):
            if os.path.isfile(path) and not os.path.islink(path) and path.isprintable():
                yield path


def line(path):
    with open(path, "rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path}\n"


def spec(path):
    """The id makes a repeat harmless: a path is one job for as long as its record is kept."""
    return job_pb2.JobSpec(topic=TOPIC, id=hashlib.sha256(path.encode()).hexdigest(),
                           payload=job_pb2.Payload(text=path), retention=Duration(seconds=3600))


def enqueue(directory):
    paths = sorted(files(directory))
    for start in range(0, len(paths), 500):
        batch = paths[start:start + 500]
        while batch:
            results = call(jobs.BatchEnqueue, api.BatchEnqueueRequest(jobs=map(spec, batch))).results
            failed = [result.error for result in results if result.error.code]
            if any(error.code != grpc.StatusCode.UNAVAILABLE.value[0] for error in failed):
                sys.exit(f"refused: {failed}")
            batch = [path for path, result in zip(batch, results) if result.error.code]
            time.sleep(random.uniform(0.1, 0.5) if batch else 0)
    print(f"{len(paths)} files enqueued")


def work(out):
    with open(out, "a+b") as file:  # Goes on where OUT ends; a line that a crash has torn is cut off.
        file.seek(0)
        whole = file.read().rpartition(b"\n")
        file.truncate(len(whole[0] + whole[1]))
    done = {text[66:] for text in whole[0].decode().split("\n")}
    inbox, held, stopped, stream = queue.Queue(), {}, threading.Event(), None

    def receive():
        nonlocal stream
        while not stopped.is_set():
            try:
                stream = jobs.Stream(api.StreamRequest(topics=[TOPIC], max_in_flight=200, worker_id=out))
                if stopped.is_set():
                    break
                for message in stream:
                    for delivery in message.deliveries:
                        held[delivery.receipt] = delivery
                        inbox.put(delivery)
            except grpc.RpcError:
                pass  # Whatever it was: keep what is in hand, then ask for a new stream.
            if keep := [api.ExtendItem(receipt=receipt) for receipt in list(held)]:
                call(jobs.Extend, api.ExtendRequest(items=keep))
            stopped.wait(random.uniform(0.1, 0.5))

    def stop(*_):
        stopped.set()
        if stream:
            stream.cancel()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    receiver = threading.Thread(target=receive)
    receiver.start()
    while receiver.is_alive() or not inbox.empty():
        batch = []
        try:
            batch.append(inbox.get(timeout=0.2))
            while len(batch) < 100:
                batch.append(inbox.get_nowait())
        except queue.Empty:
            pass
        settle(batch, out, done)
        for delivery in batch:
            del held[delivery.receipt]


def settle(batch, out, done):
    """Writes and flushes, then acknowledges: a crash in between costs a repeat, never a line."""
    acks, nacks = [], []
    with open(out, "a", encoding="utf-8") as file:
        for delivery in batch:
            try:
                if delivery.payload.text not in done:
                    file.write(line(delivery.payload.text))
                done.add(delivery.payload.text)
                acks.append(api.AckItem(receipt=delivery.receipt))
            except OSError as error:
                nacks.append(api.NackItem(receipt=delivery.receipt, error=str(error)))
        file.flush()
        os.fsync(file.fileno())
    if acks:
        call(jobs.Ack, api.AckRequest(items=acks))
    if nacks:
        call(jobs.Nack, api.NackRequest(items=nacks))


def check(directory, *outs):
    for _ in range(120):  # The leases of a killed worker may have to run out first.
        stats = call(topics.GetTopicStats, topic_service_pb2.GetTopicStatsRequest(name=TOPIC)).stats
        left = stats.scheduled + stats.ready + stats.running + stats.backoff
        if not left:
            break
        time.sleep(0.5)
    lines = [text for out in outs for text in open(out, encoding="utf-8")]
    found, wanted = set(lines), {line(path) for path in files(directory)}
    print(f"{len(wanted)} files, {len(lines)} lines, {len(lines) - len(found)} repeated, "
          f"{len(wanted - found)} missing, {len(found - wanted)} wrong; {stats.enqueued_total} enqueued, "
          f"{stats.succeeded_total} succeeded, {left} left, {stats.dead} dead")
    balanced = stats.enqueued_total == stats.succeeded_total == len(wanted) and not left and not stats.dead
    sys.exit(None if found == wanted and balanced else "the books do not balance")


if __name__ == "__main__":
    commands = {"enqueue": enqueue, "work": work, "check": check}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
