#!/usr/bin/env python3
"""Does the same work on ringq and on other queues, and shows one table and one plot.

The rounds are interleaved: each measures every scenario on every peer, on fresh servers, before the next one
begins. The medians count; beside each is its range and its ratio to ringq in the same group of durability.
`./install` gets the peers; what is missing is named and left out. The exit code is 1 when a run lost, doubled
or left a job.
"""

import argparse
import json
import sys
from pathlib import Path

import plot
import report
from peers import PEERS, SCENARIOS, Peer
from servers import Broken

HERE = Path(__file__).resolve().parent


def main() -> int:
    options = parse()
    chosen = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    present = [peer for peer in chosen if not left_out(peer)]
    broken: list[str] = []
    rounds: report.Rounds = {peer.name: {} for peer in present}
    for number in range(1, options.rounds + 1):
        for scenario in SCENARIOS:
            for peer in present:
                say(f"round {number} of {options.rounds}: {scenario} on {peer.title}")
                try:
                    for name, value in peer.run(scenario, options.scale).items():
                        rounds[peer.name].setdefault(name, []).append(value)
                except Broken as error:
                    broken.append(f"{peer.name}, {scenario}, round {number}: {error}")
    print(report.machine())
    print(report.table(present, rounds))
    print(json.dumps({"rounds": rounds, "broken": broken}))
    options.plot.write_text(plot.svg(present, rounds))
    for line in broken:
        say(f"BROKEN {line}")
    return 1 if broken else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [peer.name for peer in PEERS]
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(names)}; all if none is named")
    parser.add_argument("--rounds", type=int, default=5, help="how often (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every number of jobs (1)")
    parser.add_argument("--plot", type=Path, default=HERE / "peers.svg", help="where the plot goes")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(names):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}")
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    return options


def left_out(peer: Peer) -> bool:
    missing = peer.missing()
    if missing:
        say(f"{peer.title} is left out: there is no {', '.join(missing)}")
    return bool(missing)


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


sys.exit(main())
