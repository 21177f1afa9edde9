"""Prints a line for each check and counts failures."""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Failed(Exception):
    """A step cannot go on; the text is the reason."""


class Report:
    def __init__(self) -> None:
        self.passed = 0
        self.failures: list[str] = []

    def note(self, text: str) -> None:
        print(f"trace: {text}", flush=True)

    def check(self, text: str, passed: bool, details: object = "") -> bool:
        """Prints the outcome, and the details of a failure. Returns whether it passed."""
        if passed:
            self.passed += 1
            self.note(f"ok: {text}")
            return True
        self.failures.append(text)
        self.note(f"FAILED: {text}")
        for line in str(details).strip().splitlines()[-40:]:
            print(f"  {line}", flush=True)
        return False

    def equal(self, text: str, actual: object, expected: object) -> bool:
        return self.check(text, actual == expected, f"expected {expected!r}\nfound    {actual!r}")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Prints the time of a step. A step that fails does not end the others."""
        start = time.monotonic()
        try:
            yield
        except Failed as error:
            self.check(f"{name} reached its end", False, error)
        except Exception:  # A call that failed, for example.
            self.check(f"{name} reached its end", False, traceback.format_exc())
        self.note(f"{name} took {time.monotonic() - start:.1f} s")

    def summary(self) -> int:
        for text in self.failures:
            print(f"trace: failed: {text}", file=sys.stderr)
        self.note(f"{self.passed} passed, {len(self.failures)} failed")
        return 1 if self.failures else 0


def wait_for(what: str, condition: Callable[[], T], seconds: float = 10) -> T:
    """Returns the first true value of `condition`; fails if there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise Failed(f"no {what} in {seconds:g} s")
        time.sleep(0.02)
    return value
