"""Evaluates the queries of all panels, and compares each panel with the truth."""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from expectations import EXPECTATIONS
from report import Report
from stack import WINDOW

# Values of the variable of a dashboard with which it is evaluated.
VALUES = {"ringq-overview": [None], "ringq-topic": ["mail", "flaky", "report", "backlog"], "ringq-shard": ["a", "b"]}
VARIABLE = {"ringq-topic": "topic", "ringq-shard": "shard"}


class Panel:
    """One panel at one time: the value of each series, by its legend, for each query."""

    def __init__(self, panels: "Panels", phase: str, title: str, value: str | None, at: float, shown: list[dict[str, float]]) -> None:
        self.phase, self.title, self.value, self.at, self.shown = phase, title, value, at, shown
        self.load, self.stack = panels.load, panels.stack
        self.mistakes: list[str] = []

    @property
    def is_down(self) -> bool:
        return self.phase == "down"

    def number(self, query: int = 0) -> float:
        """The value of a query that has one series."""
        values = list(self.shown[query].values())
        if len(values) != 1:
            self.mistakes.append(f"query {query} has {len(values)} series, not one: {self.shown[query]}")
            return math.nan
        return values[0]

    def equal(self, actual: object, expected: object, what: str = "value") -> None:
        if actual != expected:
            self.mistakes.append(f"{what}: {actual!r} in place of {expected!r}")

    def within(self, actual: float | None, low: float, high: float, what: str = "value") -> None:
        if actual is None or not low <= actual <= high:
            self.mistakes.append(f"{what}: {actual!r} is not within {low:.4g} and {high:.4g}")

    def near(self, actual: float | None, expected: float, part: float = 0.25, slack: float = 0.6, what: str = "value") -> None:
        """Near a rate or number that changes meanwhile."""
        self.within(actual, expected * (1 - part) - slack, expected * (1 + part) + slack, what)

    def rate(self, *key: str | None) -> float:
        return self.load.rate(self.at, WINDOW, *key)


class Panels:
    def __init__(self, directory: Path, prometheus, load, stack=None) -> None:
        self.prometheus, self.load, self.stack = prometheus, load, stack
        self.dashboards = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
        self.evaluated: set[tuple[str, str]] = set()

    def evaluate(self, report: Report, phase: str) -> None:
        """Checks all panels in this phase."""
        panels = mistakes = 0
        # One time for all, so that the truth has one window.
        at = time.time() - 1
        for dashboard in self.dashboards:
            for value in VALUES[dashboard["uid"]]:
                for each in dashboard["panels"]:
                    if each["type"] == "row":
                        continue
                    panels += 1
                    mistakes += not self.check(report, phase, dashboard["uid"], value, each, at)
        report.note(f"{phase}: {panels} panels evaluated, {mistakes} wrong")

    def check(self, report: Report, phase: str, uid: str, value: str | None, each: dict, at: float) -> bool:
        title = each["title"]
        shown = [self.series(target, uid, value, at) for target in each["targets"]]
        panel = Panel(self, phase, title, value, at, shown)
        expectation: Callable | None = EXPECTATIONS.get((uid, title))
        if expectation is None:
            return report.check(f"{uid}, {title}: there is an expectation", False, "add it to expectations.py")
        self.evaluated.add((uid, title))
        try:
            expectation(panel)
        except (KeyError, ValueError, ZeroDivisionError) as error:
            panel.mistakes.append(repr(error))
        name = f"{phase}: {uid} {value or ''} {title}"
        return report.check(name, not panel.mistakes, "\n".join([*panel.mistakes, f"shown: {shown}"]), quiet=True)

    def series(self, target: dict, uid: str, value: str | None, at: float) -> dict[str, float]:
        expression = target["expr"].replace("$__rate_interval", f"{WINDOW}s").replace("$job", "ringq")
        if value is not None:
            expression = expression.replace("$" + VARIABLE[uid], value)
        legend = target["legendFormat"]
        label = lambda labels: re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), legend)
        return {label(each["metric"]): each["value"] for each in self.prometheus.query(expression, at)}

    def all_expected(self, report: Report) -> None:
        """Every panel was evaluated, and every expectation belongs to one."""
        report.equal("every expectation belongs to a panel", sorted(set(EXPECTATIONS) - self.evaluated), [])
