"""The compared peers: the start of each, the durability of its answers, and the reading of its runs."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from servers import Broken, Server, free_port, running, scratch

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools" / "peers"
BODY_BYTES = 100
# One job at a time takes longer per job than the timed phases of `Peer.jobs`.
UNARY_JOBS = 60_000
# Time limit of a harness.
RUN_S = 300.0

SCENARIOS = ("unary", "life", "both", "idle")
# Jobs per second, or milliseconds, by name.
Figures = dict[str, float]


@dataclass(frozen=True)
class Peer:
    """A row of the table."""

    name: str
    title: str
    # Answered jobs that a power cut of the machine loses.
    power_cut: str
    # True if it loses none. Figures are compared within such a group.
    synced: bool
    # Servers for a port and an empty directory. The last one has the port.
    servers: Callable[[int, Path], list[Server]]
    harness: list[str]
    # Programs and files without which it is left out.
    needs: list[str]
    # Jobs of a timed phase, and one at a time.
    jobs: int
    idle_jobs: int = 1000
    # Remarks beside its figures.
    remark: str = ""

    def is_ours(self) -> bool:
        return self.name.startswith("ringq")

    def missing(self) -> list[str]:
        return [need for need in self.needs if not (shutil.which(need) or Path(need).is_file())]

    def run(self, scenario: str, scale: float) -> Figures:
        """Measures once, on fresh servers."""
        jobs = {"idle": self.idle_jobs, "unary": min(self.jobs, UNARY_JOBS)}.get(scenario, self.jobs)
        jobs = max(100, int(jobs * scale))
        port = free_port()
        with scratch() as place, running(self.servers(port, place), place):
            if self.is_ours():
                return _ours(port, scenario, jobs)
            words = [*self.harness, str(port), scenario, str(jobs), str(BODY_BYTES)]
            return _theirs(_output(words), scenario, jobs)


def _output(words: list[str]) -> dict:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A process group of its own, killed with its workers.
    child = subprocess.Popen(words, text=True, start_new_session=True, **pipes)
    try:
        output, errors = child.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        raise Broken(f"{words[0]} has not ended after {RUN_S:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    if child.returncode:
        raise Broken(f"{words[0]} ended with {child.returncode}: {errors.strip()[-1000:]}")
    return json.loads(output)


def _ours(port: int, scenario: str, jobs: int) -> Figures:
    """Reads figures of `ringq bench`, which fails when its counts do not balance."""
    preset = "lifecycle" if scenario == "life" else scenario
    flags = ["--jobs", str(jobs), "--body", str(BODY_BYTES), "--server", f"127.0.0.1:{port}", "-o", "json"]
    round = _output([ringq(), "bench", preset, *flags])["rounds"][0]
    match scenario:
        case "life":
            return {"bulk": round["enqueue_rate"], "consume": round["consume_rate"], "life": round["rate"]}
        case "idle":
            return {part: round["dispatch_us"][part] / 1e3 for part in ("p50", "p99")}
        case _:
            return {scenario: round["rate"]}


def _theirs(result: dict, scenario: str, jobs: int) -> Figures:
    """Reads figures of a harness, once its counts balance."""
    if (result["delivered"], result["doubled"], result["left"]) != (jobs, 0, 0):
        raise Broken(f"the books of {jobs} jobs do not balance: {result}")
    match scenario:
        case "unary":
            return {"unary": jobs / result["enqueue_s"]}
        case "life":
            parts = {"bulk": "enqueue_s", "consume": "consume_s", "life": "total_s"}
            return {name: jobs / result[part] for name, part in parts.items()}
        case "both":
            return {"both": jobs / result["total_s"]}
        case _:
            return {part: result[f"{part}_us"] / 1e3 for part in ("p50", "p99")}


def ringq() -> str:
    return os.environ.get("RINGQ_BIN", str(ROOT / "target" / "release" / "ringq"))


def _redis(port: int, place: Path, fsync: str = "everysec") -> Server:
    settings = {"bind": "127.0.0.1", "port": str(port), "dir": str(place), "save": "",
                "appendonly": "yes", "appendfsync": fsync,
                # Like in deploy/redis.conf, for every peer: else the log is rewritten in the middle of most rounds.
                "auto-aof-rewrite-min-size": "512mb"}
    return Server(port, ["redis-server", *(word for name, value in settings.items() for word in (f"--{name}", value))])


def _on_redis(port: int, place: Path) -> list[Server]:
    return [_redis(port, place)]


def _serve(port: int, shard: str) -> Server:
    listen = ["--listen", f"127.0.0.1:{port}", "--http-listen", "127.0.0.1:0"]
    return Server(port, [ringq(), "serve", *listen, "--shard", f"s0={shard}"])


def _ringq_on_redis(port: int, place: Path, fsync: str) -> list[Server]:
    redis = _redis(free_port(), place, fsync)
    return [redis, _serve(port, f"redis://127.0.0.1:{redis.port}")]


def _beanstalkd(port: int, place: Path, fsync: list[str]) -> list[Server]:
    return [Server(port, ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(place), *fsync])]


def _nats(port: int, place: Path, sync: str) -> list[Server]:
    config = place / "nats.conf"
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{place}", sync_interval: {sync} }}\n')
    return [Server(port, [str(TOOLS / "nats-server"), "--config", str(config)])]


def _go(name: str) -> list[str]:
    return [str(TOOLS / "harness" / name)]


_NATS = [*_go("nats"), str(TOOLS / "nats-server")]
_BEANSTALKD = ["beanstalkd", *_go("beanstalkd")]
_ASYNQ = ["redis-server", *_go("asynq")]
_NODE = ["node", str(TOOLS / "bullmq" / "harness.mjs")]
_PYTHON = [str(TOOLS / "celery" / "bin" / "python"), str(ROOT / "benches" / "peers" / "celery" / "harness.py")]
_AOF = "the last second or two"

# Peers in the order of the table. The others of a group are compared with its first one.
PEERS = [
    Peer("ringq-redis", "ringq, Redis everysec", _AOF, False,
         lambda port, place: _ringq_on_redis(port, place, "everysec"), [], [ringq(), "redis-server"], 300_000),
    Peer("nats", "NATS JetStream, file", "up to two minutes", False,
         lambda port, place: _nats(port, place, "2m"), _go("nats"), _NATS, 300_000,
         remark="acks are not answered"),
    Peer("beanstalkd", "beanstalkd -b", "the last 50 ms", False,
         lambda port, place: _beanstalkd(port, place, []), _go("beanstalkd"), _BEANSTALKD, 100_000,
         remark="in bulk is pipelined, there is no call for many"),
    Peer("bullmq", "BullMQ, Redis everysec", _AOF, False, _on_redis, _NODE,
         ["redis-server", "node", str(TOOLS / "bullmq" / "installed.json")], 60_000),
    Peer("asynq", "asynq, Redis everysec", _AOF, False, _on_redis, _go("asynq"), _ASYNQ, 60_000,
         remark="no call for many; looks for jobs every 5 ms here, every second by default"),
    Peer("celery", "Celery, Redis everysec", _AOF, False, _on_redis, _PYTHON,
         ["redis-server", _PYTHON[0]], 5_000, idle_jobs=400, remark="no call for many"),
    Peer("ringq", "ringq, SQLite", "nothing", True,
         lambda port, place: [_serve(port, f"sqlite:{place / 'ringq.db'}")], [], [ringq()], 300_000),
    Peer("ringq-always", "ringq, Redis always", "nothing", True,
         lambda port, place: _ringq_on_redis(port, place, "always"), [], [ringq(), "redis-server"], 300_000),
    Peer("nats-always", "NATS JetStream, sync always", "nothing", True,
         lambda port, place: _nats(port, place, "always"), _go("nats"), _NATS, 20_000,
         remark="acks are not answered"),
    Peer("beanstalkd-always", "beanstalkd -b -f 0", "nothing", True,
         lambda port, place: _beanstalkd(port, place, ["-f", "0"]), _go("beanstalkd"), _BEANSTALKD, 20_000,
         remark="in bulk is pipelined"),
]
