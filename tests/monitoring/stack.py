"""The processes: three Redis, two servers, two small installations apart, and a Prometheus that scrapes all of them every
second."""

import json
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from report import Failed, wait_until

SHARDS = ("a", "b", "c")
SERVERS = ("one", "two")
# Other installations, which panels do not show: the name of the server, and its shards.
APART = {"moved": ("e", "f"), "clocks": ("g",), "tls": ("h",)}
# The window of rates in panels, in place of $__rate_interval, and in rules.
WINDOW = 10


handed_out: set[int] = set()


def free_port() -> int:
    """A port below those that the system gives to outgoing connections, so that none takes it before its server does."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in handed_out:
            handed_out.add(port)
            return port


def generate_stubs(root: Path, directory: Path) -> None:
    """Generates the Python code of the contract and makes it importable."""
    directory.mkdir()
    protos = [str(path) for path in sorted((root / "proto/ringq/v1").glob("*.proto"))]
    done = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{root / 'proto'}", f"--python_out={directory}",
         f"--grpc_python_out={directory}", *protos], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the contract was not compiled; .ci/install-test-tools installs grpcio-tools: {done.stderr}")
    sys.path.insert(0, str(directory))


def program(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise Failed(f"{name} is missing: run .ci/install-test-tools")
    return found


class Process:
    """A program that can be started again with the same arguments, and whose output is kept."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name, self.arguments, self.log = name, arguments, log
        self.more_environment: dict[str, str] = {}
        self.running: subprocess.Popen | None = None

    def start(self) -> None:
        # The settings of a server are its flags alone.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RINGQ_")} | self.more_environment
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(self.arguments, stdout=log, stderr=log, env=environment)

    def kill(self) -> None:
        if self.running:
            self.running.kill()
            self.running.wait()
            self.running = None

    def terminate(self) -> None:
        if self.running:
            self.running.terminate()
            try:
                self.running.wait(20)
            except subprocess.TimeoutExpired:
                pass
            self.kill()

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(f"{self.name}: {line}" for line in lines[-15:])


class RedisConnection:
    """A connection that stays open, also while the Redis accepts no other one."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.answers = self.socket.makefile("rb")

    def __enter__(self) -> "RedisConnection":
        return self

    def __exit__(self, *_) -> None:
        self.answers.close()
        self.socket.close()

    def command(self, *words: str) -> str:
        request = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        self.socket.sendall(request.encode())
        first = self.line()
        return self.answers.read(int(first[1:]) + 2).decode()[:-2] if first.startswith("$") else first.lstrip("+:")

    def line(self) -> str:
        line = self.answers.readline()
        if not line:
            raise ConnectionError("closed")
        return line.decode(errors="replace").strip()


class Redis(Process):
    PROGRAM = "redis-server"

    def __init__(self, name: str, work: Path) -> None:
        self.port = free_port()
        directory = work / f"redis-{name}"
        directory.mkdir()
        # Its jobs survive the kill.
        super().__init__(f"redis {name}", [
            program(self.PROGRAM), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--maxmemory", "1gb",
        ], work / f"redis-{name}.log")

    def start(self) -> None:
        super().start()
        if not wait_until(lambda: self.command("PING") == "PONG", 20, 0.05):
            raise Failed(f"{self.name} does not answer\n{self.tail()}")

    def command(self, *words: str) -> str:
        """Sends a command whose answer is one line, or one text."""
        try:
            with RedisConnection(self.port) as connection:
                return connection.command(*words)
        except OSError as error:
            return f"-{error}"

    def info(self, field: str) -> int:
        return int(re.search(rf"^{field}:(\d+)", self.command("INFO", "memory"), re.M)[1])


class ClockedRedis(Redis):
    """A Redis whose clock can be set. It is a Valkey: libfaketime cannot be loaded with the allocator of Debian's Redis."""

    PROGRAM = "valkey-server"

    def __init__(self, name: str, root: Path, work: Path) -> None:
        super().__init__(name, work)
        libraries = [path for base in (Path("/usr/lib"), root / ".tools/faketime/usr/lib")
                     for path in base.glob("*/faketime/libfaketime.so.1")]
        if not libraries:
            raise Failed("libfaketime is missing: run tests/monitoring/install")
        self.offset = work / f"clock-{name}"
        self.set_ahead(0)
        # The file is read at each look at the clock.
        self.more_environment = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(self.offset),
                                 "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def set_ahead(self, seconds: int) -> None:
        """Sets the clock to this many seconds ahead of the true time, while the Redis runs."""
        new = self.offset.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self.offset)


class Server(Process):
    def __init__(self, name: str, binary: str, redis: dict[str, Redis], work: Path) -> None:
        self.grpc, self.http = free_port(), free_port()
        super().__init__(f"server {name}", [], work / f"server-{name}.log")
        self.settings = [binary, "serve", "--listen", f"127.0.0.1:{self.grpc}", "--http-listen", f"127.0.0.1:{self.http}",
                         "--replica", name]
        self.instance = f"127.0.0.1:{self.http}"
        self.set_shards(redis)

    def set_shards(self, redis: dict[str, Redis]) -> None:
        """Sets the list of shards of the next start."""
        shards = [flag for shard, each in redis.items() for flag in ("--shard", f"{shard}=redis://127.0.0.1:{each.port}")]
        self.arguments = self.settings + shards

    def start(self) -> None:
        super().start()
        if not wait_until(self.is_ready, 30, 0.05):
            raise Failed(f"{self.name} is not ready\n{self.tail()}")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.instance}/readyz", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.M)[1]) * 1024


class TlsServer(Server):
    """A server whose certificate, identities and file of topics can be replaced."""

    def __init__(self, name: str, binary: str, redis: dict[str, Redis], work: Path) -> None:
        self.certificate, self.key = work / "tls.crt", work / "tls.key"
        self.identities, self.topics = work / "identities.toml", work / "topics.toml"
        self.renew(days=1)
        self.write_identities()
        self.write_topics(revision=1)
        super().__init__(name, binary, redis, work)
        self.arguments += ["--tls-cert", str(self.certificate), "--tls-key", str(self.key)]
        self.arguments += ["--identities", str(self.identities), "--metrics-open", "true"]
        self.arguments += ["--topics", str(self.topics)]

    def write_identities(self, text: str = '[[identity]]\nname = "none"\n') -> None:
        self.identities.write_text(text)

    def write_topics(self, revision: int, priority: int = 0) -> None:
        self.topics.write_text(f'revision = {revision}\n[topic."*"]\npriority = {priority}\n')

    def renew(self, days: int) -> None:
        arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(days),
                     "-subj", "/CN=ringq", "-out", str(self.certificate), "-keyout", str(self.key)]
        subprocess.run([program("openssl"), *arguments], check=True, capture_output=True)

    def is_ready(self) -> bool:
        try:
            url = f"https://{self.instance}/readyz"
            with urllib.request.urlopen(url, timeout=2, context=ssl._create_unverified_context()) as answer:
                return answer.status == 200
        except OSError:
            return False


class Prometheus(Process):
    def __init__(self, servers: dict[str, Server], apart: dict[str, Server], rules: str, work: Path) -> None:
        self.port = free_port()
        (work / "rules.yaml").write_text(rules)
        groups = [("ringq", servers.values(), {}),
                  ("apart", [each for each in apart.values() if not isinstance(each, TlsServer)], {}),
                  ("secure", [each for each in apart.values() if isinstance(each, TlsServer)],
                   {"scheme": "https", "tls_config": {"insecure_skip_verify": True}})]
        jobs = [{"job_name": name, "static_configs": [{"targets": [server.instance for server in scraped]}], **more}
                for name, scraped, more in groups]
        (work / "prometheus.yaml").write_text(
            "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }\n"
            "rule_files: [rules.yaml]\n"
            f"scrape_configs: {json.dumps(jobs)}\n")
        super().__init__("prometheus", [
            program("prometheus"), f"--config.file={work / 'prometheus.yaml'}", f"--storage.tsdb.path={work / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ], work / "prometheus.log")

    def start(self) -> None:
        super().start()
        if not wait_until(self.has_scraped, 30):
            raise Failed(f"Prometheus has scraped nothing\n{self.tail()}")

    def has_scraped(self) -> bool:
        try:
            return len(self.query("up == 1")) == len(SERVERS) + len(APART)
        except (OSError, Failed):
            # While it starts, it refuses queries.
            return False

    def query(self, expression: str, at: float | None = None) -> list[dict]:
        """Returns the series of an instant query: labels and value of each."""
        parameters = {"query": expression} | ({"time": str(at)} if at else {})
        data = self.get("query", parameters)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": float(data["result"][1])}]
        return [{"metric": each["metric"], "value": float(each["value"][1])} for each in data["result"]]

    def alerts(self) -> list[dict]:
        return self.get("alerts", {})["alerts"]

    def get(self, path: str, parameters: dict[str, str]) -> dict:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Failed(f"{parameters}: {error.read().decode()}") from error


class Stack:
    def __init__(self, root: Path, work: Path) -> None:
        import alerts

        builds = [root / "target" / profile / "ringq" for profile in ("release", "debug")]
        builds = sorted((path for path in builds if path.exists()), key=lambda path: path.stat().st_mtime)
        binary = os.environ.get("RINGQ_BIN") or (builds and str(builds[-1]))
        if not binary:
            raise SystemExit("there is no server: run cargo build first, or set RINGQ_BIN")
        self.root, self.binary = root, binary
        self.redis = {name: Redis(name, work) for name in SHARDS}
        self.work = work
        self.others: list[Server] = []
        self.servers = {name: Server(name, binary, self.redis, work) for name in SERVERS}
        self.redis_apart = {name: Redis(name, work) for name in (*APART["moved"], *APART["tls"])}
        self.clocked = self.redis_apart["g"] = ClockedRedis("g", root, work)
        self.apart = {name: (TlsServer if name == "tls" else Server)(name, binary, {shard: self.redis_apart[shard] for shard in shards}, work)
                      for name, shards in APART.items()}
        rules = alerts.shortened((root / "deploy/monitoring/alerts.yaml").read_text())
        self.prometheus = Prometheus(self.servers, self.apart, rules, work)
        # Time at which the topic without a worker got its jobs.
        self.loaded_at = time.time()

    def server(self, name: str, redis: dict[str, Redis]) -> Server:
        """Another server, which Prometheus does not scrape."""
        self.others.append(Server(name, self.binary, redis, self.work))
        return self.others[-1]

    def all(self) -> list[Process]:
        return [*self.redis.values(), *self.redis_apart.values(), *self.servers.values(), *self.apart.values(), *self.others,
                self.prometheus]

    def start(self) -> None:
        for process in self.all():
            process.start()

    def stop(self) -> None:
        for process in reversed(self.all()):
            process.kill()

    def ended(self) -> str:
        return "\n".join(process.tail() for process in self.all())
