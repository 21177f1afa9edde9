"""The table: medians over all rounds, their ranges, and their ratios to ringq."""

import os
import subprocess
import tempfile
import time
from statistics import median

from peers import Peer

# Values of all rounds of a peer, by the name of the figure.
Rounds = dict[str, dict[str, list[float]]]

# Figures in thousands of jobs per second, with their titles.
RATES = {
    "unary": "one by one",
    "bulk": "in bulk",
    "consume": "take and ack",
    "life": "bulk, then take and ack",
    "both": "both at once",
}
# Number of timed syncs of the disk.
SYNCS = 200
LATENCY = "idle, p50 / p99 ms"


def table(peers: list[Peer], rounds: Rounds) -> str:
    head = ["", "a power cut takes", *RATES.values(), LATENCY, "remarks"]
    lines = [head, ["---"] * len(head)]
    for peer in peers:
        rates = [cell(peers, peer, rounds, name) for name in RATES]
        lines.append([peer.title, peer.power_cut, *rates, latency(peers, peer, rounds), peer.remark])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> str:
    """Describes the environment of the figures that the repository does not pin."""
    servers = [["redis-server", "--version"], ["beanstalkd", "-v"]]
    versions = [version(words) for words in servers]
    return f"{os.cpu_count()} cores; a sync of 4 KiB takes {sync_us():.0f} us; {'; '.join(versions)}"


def version(words: list[str]) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.split(" sha=")[0].strip()
    except OSError:
        return f"no {words[0]}"


def sync_us() -> float:
    """Returns the median time of a sync in the directory of the servers' data."""
    took = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - start) * 1e6)
    return median(took)


def reference(peers: list[Peer], peer: Peer) -> Peer | None:
    """Returns the reference of a peer: the first of its group that was measured, if that is ringq."""
    first = next(other for other in peers if other.synced == peer.synced)
    return first if first.is_ours() and first is not peer else None


def ratio(peers: list[Peer], peer: Peer, rounds: Rounds, name: str) -> float | None:
    """Returns its median divided by that of ringq."""
    other = reference(peers, peer)
    if other is None or not rounds[other.name].get(name):
        return None
    return median(rounds[peer.name][name]) / median(rounds[other.name][name])


def cell(peers: list[Peer], peer: Peer, rounds: Rounds, name: str) -> str:
    values = rounds[peer.name].get(name)
    if not values:
        return "failed"
    thousands = [value / 1e3 for value in values]
    return f"{spread(thousands)}{times(ratio(peers, peer, rounds, name))}"


def latency(peers: list[Peer], peer: Peer, rounds: Rounds) -> str:
    figures = rounds[peer.name]
    if not figures.get("p50"):
        return "failed"
    return f"{spread(figures['p50'])} / {digits(median(figures['p99']))}{times(ratio(peers, peer, rounds, 'p50'))}"


def spread(values: list[float]) -> str:
    middle = digits(median(values))
    return middle if len(values) == 1 else f"{middle} ({digits(min(values))}-{digits(max(values))})"


def times(ratio: float | None) -> str:
    return "" if ratio is None else f", {digits(ratio)}x"


def digits(value: float) -> str:
    """Formats a number with about three significant digits."""
    decimals = next((n for n, least in enumerate((100, 10, 0.1)) if value >= least), 3)
    return f"{value:.{decimals}f}"
