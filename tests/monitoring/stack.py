"""The processes: three Redis, two servers, and a Prometheus that scrapes them every second."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from report import Failed, wait_until

SHARDS = ("a", "b", "c")
SERVERS = ("one", "two")
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
        self.running: subprocess.Popen | None = None

    def start(self) -> None:
        # The settings of a server are its flags alone.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RINGQ_")}
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


class Redis(Process):
    def __init__(self, name: str, work: Path) -> None:
        self.port = free_port()
        directory = work / f"redis-{name}"
        directory.mkdir()
        # Its jobs survive the kill.
        super().__init__(f"redis {name}", [
            program("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--maxmemory", "1gb",
        ], work / f"redis-{name}.log")

    def start(self) -> None:
        super().start()
        if not wait_until(lambda: self.command("PING") == "PONG", 20, 0.05):
            raise Failed(f"{self.name} does not answer\n{self.tail()}")

    def command(self, *words: str) -> str:
        """Sends a command whose answer is one line, or one text."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                request = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
                connection.sendall(request.encode())
                with connection.makefile("rb") as answers:
                    first = answers.readline().decode().strip()
                    return answers.read(int(first[1:])).decode() if first.startswith("$") else first.lstrip("+:")
        except OSError as error:
            return f"-{error}"

    def info(self, field: str) -> int:
        return int(re.search(rf"^{field}:(\d+)", self.command("INFO", "memory"), re.M)[1])


class Server(Process):
    def __init__(self, name: str, binary: str, redis: dict[str, Redis], work: Path) -> None:
        self.grpc, self.http = free_port(), free_port()
        shards = [flag for shard, each in redis.items() for flag in ("--shard", f"{shard}=redis://127.0.0.1:{each.port}")]
        super().__init__(f"server {name}", [
            binary, "serve", "--listen", f"127.0.0.1:{self.grpc}", "--http-listen", f"127.0.0.1:{self.http}",
            "--replica", name, *shards,
        ], work / f"server-{name}.log")
        self.instance = f"127.0.0.1:{self.http}"

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


class Prometheus(Process):
    def __init__(self, servers: dict[str, Server], rules: str, work: Path) -> None:
        self.port = free_port()
        (work / "rules.yaml").write_text(rules)
        targets = json.dumps([server.instance for server in servers.values()])
        (work / "prometheus.yaml").write_text(
            "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }\n"
            "rule_files: [rules.yaml]\n"
            f"scrape_configs: [{{ job_name: ringq, static_configs: [{{ targets: {targets} }}] }}]\n")
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
            return len(self.query('up{job="ringq"} == 1')) == len(SERVERS)
        except OSError:
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
        rules = alerts.shortened((root / "deploy/monitoring/alerts.yaml").read_text())
        self.prometheus = Prometheus(self.servers, rules, work)
        # Time at which the topic without a worker got its jobs.
        self.loaded_at = time.time()

    def server(self, name: str, redis: dict[str, Redis]) -> Server:
        """Another server, which Prometheus does not scrape."""
        self.others.append(Server(name, self.binary, redis, self.work))
        return self.others[-1]

    def all(self) -> list[Process]:
        return [*self.redis.values(), *self.servers.values(), *self.others, self.prometheus]

    def start(self) -> None:
        for process in self.all():
            process.start()

    def stop(self) -> None:
        for process in reversed(self.all()):
            process.kill()

    def ended(self) -> str:
        return "\n".join(process.tail() for process in self.all())
