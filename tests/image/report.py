"""Prints one line for each check and the time of each step, and counts failures."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Failed(Exception):
    """A step cannot go on; the text is the reason."""


class Report:
    def __init__(self) -> None:
        self.passed = 0
        self.failures: list[str] = []

    def note(self, text: str) -> None:
        print(f"image-test: {text}", flush=True)

    def check(self, text: str, passed: bool, details: object = "") -> bool:
        """Prints the outcome, and the details of a failure. Returns whether it passed."""
        if passed:
            self.passed += 1
            self.note(f"ok: {text}")
            return True
        self.failures.append(text)
        self.note(f"FAILED: {text}")
        for line in str(details).strip().splitlines()[-30:]:
            print(f"  {line}", flush=True)
        return False

    def equal(self, text: str, actual: object, expected: object) -> bool:
        return self.check(text, actual == expected, f"expected {expected!r}, found {actual!r}")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Prints the time of a step. A step that fails does not end the others."""
        self.note(f"{name} ...")
        start = time.monotonic()
        try:
            yield
        except Failed as error:
            self.check(f"{name} reached its end", False, error)
        self.note(f"{name} took {time.monotonic() - start:.1f} s")

    def summary(self) -> int:
        self.note(f"{self.passed} passed, {len(self.failures)} failed")
        for text in self.failures:
            print(f"image-test: failed: {text}", file=sys.stderr)
        return 1 if self.failures else 0


def wait_until(condition: Callable[[], bool], seconds: float, period: float = 0.1) -> bool:
    """Returns whether the condition became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(period)
    return True
