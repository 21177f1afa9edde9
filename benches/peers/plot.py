"""The plot: a panel per figure, a bar per peer, drawn by hand as SVG. Every panel has a scale of its own, from zero."""

from html import escape
from statistics import median

import report
from peers import Peer
from report import Rounds

# Height of a row of a panel, space between two groups with its heading, and thickness of a bar.
ROW, GROUP, BAR = 20, 34, 11
# Width of the column of names, of a panel with its margin, and of its longest bar. The rest is for the number.
NAMES, PANEL, LONGEST = 190, 232, 122
COLUMNS = 3
HEAD, MARGIN = 50, 16

STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .ours { fill: #1f6feb } .peer { fill: #afb8c1 } .range { stroke: #57606a }
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .soft { fill: #57606a } .strong { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d } .ours { fill: #388bfd } .peer { fill: #484f58 } .range { stroke: #9198a1 }
    text { fill: #f0f6fc } .soft { fill: #9198a1 }
  }
"""
GROUPS = {False: "a power cut may take the last jobs", True: "an answered job survives a power cut"}


def svg(peers: list[Peer], rounds: Rounds) -> str:
    panels = [(name, f"{title}, jobs/s") for name, title in report.RATES.items()]
    panels.append(("p50", "idle, p50 / p99 ms, less is better"))
    places, height = rows(peers)
    width = NAMES + COLUMNS * PANEL + 2 * MARGIN
    lines = -(-len(panels) // COLUMNS)
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{lines * height + MARGIN}" rx="6"/>']
    for line in range(lines):
        top = line * height + MARGIN
        parts += names(peers, places, top)
        for column, (name, title) in enumerate(panels[line * COLUMNS : (line + 1) * COLUMNS]):
            parts += panel(peers, rounds, places, name, title, MARGIN + NAMES + column * PANEL, top)
    tall = lines * height + MARGIN + 1
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{tall}" '
        f'viewBox="0 0 {width} {tall}">\n<title>ringq and other queues: {len(panels)} figures</title>\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


def rows(peers: list[Peer]) -> tuple[dict[str, int], int]:
    """Returns the position of each peer's row in a panel, and the height of a panel."""
    places, y = {}, HEAD - GROUP
    for nth, peer in enumerate(peers):
        if nth == 0 or peer.synced != peers[nth - 1].synced:
            y += GROUP
        places[peer.name] = y
        y += ROW
    return places, y + MARGIN


def names(peers: list[Peer], places: dict[str, int], top: int) -> list[str]:
    parts, group = [], None
    for peer in peers:
        y = top + places[peer.name]
        if peer.synced != group:
            parts.append(text(MARGIN, y - 7, GROUPS[peer.synced], "soft"))
        group = peer.synced
        parts.append(text(MARGIN, y + BAR, peer.title, "strong" if peer.is_ours() else ""))
    return parts


def panel(
    peers: list[Peer], rounds: Rounds, places: dict[str, int], name: str, title: str, left: int, top: int
) -> list[str]:
    parts = [text(left, top + 14, title, "strong")]
    most = max((max(rounds[peer.name].get(name, [0.0])) for peer in peers), default=0.0)
    for peer in peers:
        y = top + places[peer.name]
        values = rounds[peer.name].get(name)
        if not values:
            parts.append(text(left, y + BAR, "failed", "soft"))
            continue
        length, low, high = (value / most * LONGEST for value in (median(values), min(values), max(values)))
        kind, style = ("ours", "strong") if peer.is_ours() else ("peer", "")
        ratio = report.ratio(peers, peer, rounds, name)
        aside = "" if ratio is None else f"{report.digits(ratio)}x"
        parts += [
            f'<rect class="{kind}" x="{left}" y="{y + 1}" width="{max(length, 1):.1f}" height="{BAR}"/>',
            f'<path class="range" d="M{left + low:.1f} {y + BAR / 2 + 1}H{left + high:.1f}"/>',
            text(left + high + 6, y + BAR, label(peer, rounds, name), style, aside),
        ]
    return parts


def label(peer: Peer, rounds: Rounds, name: str) -> str:
    value = median(rounds[peer.name][name])
    if name == "p50":
        return f"{report.digits(value)} / {report.digits(median(rounds[peer.name]['p99']))}"
    return f"{report.digits(value / 1e3)}k"


def text(x: float, y: float, words: str, kind: str, aside: str = "") -> str:
    softer = f' <tspan class="soft">{aside}</tspan>' if aside else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}{softer}</text>'
