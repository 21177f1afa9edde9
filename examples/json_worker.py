"""Counts the lines of files, one job each, with JSON calls only. Usage: json_worker.py http://127.0.0.1:7701 TOPIC

Sends the token in RINGQ_TOKEN, if there is one.
"""
import http.client, json, os, signal, sys, time, urllib.error, urllib.request

WAIT, LEASE = 10, 60  # Seconds. A job that can take longer than LEASE needs Extend, from a second thread.
(server, topic), stop = sys.argv[1:], []
headers = {"content-type": "application/json"}
if token := os.environ.get("RINGQ_TOKEN"):
    headers["authorization"] = f"Bearer {token}"
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))  # The loop below ends after the current job.

def handle(job):  # Replace it by your work. An exception is a failed attempt. A job can come twice.
    with open(job.get("payload", {}).get("text", "")) as file:  # Empty fields are left out.
        print(job["id"], sum(1 for _ in file), flush=True)

def call(method, request, until=0):  # Repeats what is safe to repeat. {}: `until` has passed without an answer.
    url, body = f"{server}/v1/ringq.v1.QueueService/{method}", json.dumps(request).encode()
    while True:
        try:  # The timeout must be longer than the wait of a Pull.
            post = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(post, timeout=WAIT + 10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 502, 503, 504):  # 502 comes from proxies.
                sys.exit(f"{method}: {error}: {error.read().decode(errors='replace')}")
            pause, reason = int(error.headers.get("retry-after", 1)), error
        except (OSError, http.client.HTTPException) as error:  # No connection, or an answer that is cut off.
            pause, reason = 1, repr(error)
        print(f"{method}: {reason}; again in {pause} s", file=sys.stderr)
        time.sleep(pause)
        if time.monotonic() > until:
            return {}

def settle(method, item):  # Repeats while the shard is away, but not for longer than the lease.
    until = time.monotonic() + LEASE
    while failures := call(method, {"items": [item]}, until).get("failures"):
        print(f"{method}: {failures[0]['error']}: {failures[0]['message']}", file=sys.stderr)
        if failures[0]["error"] != "SETTLE_ERROR_UNAVAILABLE" or time.monotonic() > until:
            return  # NOT_FOUND, STALE: the job was deleted, or its lease has ended and it comes again.
        time.sleep(1)

while not stop:
    pull = {"topics": [topic], "wait": f"{WAIT}s", "leaseDuration": f"{LEASE}s", "workerId": "json_worker"}
    for job in call("Pull", pull).get("deliveries", []):
        try:
            handle(job)
        except Exception as error:
            settle("Nack", {"receipt": job["receipt"], "error": repr(error)[:1000]})
        else:
            settle("Ack", {"receipt": job["receipt"]})
