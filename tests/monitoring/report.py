"""Prints one line for each check, and counts failures."""

import sys
import time
from collections.abc import Callable


class Failed(Exception):
    """The scenario cannot go on; the text is the reason."""


class Report:
    def __init__(self) -> None:
        self.passed = 0
        self.failures: list[str] = []
        self.begin = time.monotonic()

    def note(self, text: str) -> None:
        print(f"monitoring: {time.monotonic() - self.begin:5.1f} s {text}", flush=True)

    def check(self, text: str, passed: bool, details: object = "", quiet: bool = False) -> bool:
        """Counts the outcome, and prints it with the details of a failure. A success is not printed if `quiet`."""
        if passed:
            self.passed += 1
            if not quiet:
                self.note(f"ok: {text}")
            return True
        self.failures.append(text)
        self.note(f"FAILED: {text}")
        for line in str(details).strip().splitlines()[-40:]:
            print(f"  {line}", flush=True)
        return False

    def equal(self, text: str, actual: object, expected: object) -> bool:
        return self.check(text, actual == expected, f"expected {expected!r}, found {actual!r}")

    def summary(self) -> int:
        self.note(f"{self.passed} passed, {len(self.failures)} failed")
        for text in self.failures:
            print(f"monitoring: failed: {text}", file=sys.stderr)
        return 1 if self.failures or not self.passed else 0


def wait_until(condition: Callable[[], bool], seconds: float, period: float = 0.2) -> bool:
    """Returns whether the condition became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(period)
    return True
