"""Two builds of one commit, in two directories, with two cargo homes, are equal byte for byte."""

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from report import Failed, Report

# All that the binary is made of.
INPUTS = ["Cargo.toml", "Cargo.lock", "build.rs", ".cargo", "proto", "src", "deploy/build-static",
          "deploy/ringq.toml"]


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


class Checkout:
    """A clean checkout of HEAD with a target directory of its own. It is kept, so that an unchanged tree builds once."""

    def __init__(self, root: Path, directory: Path, environment: dict[str, str]) -> None:
        self.root, self.directory, self.environment = root, directory, environment

    def build(self) -> Path:
        """Returns the directory with the files of the image."""
        files, stamp = self.directory / "target/image", self.directory / "target/image.inputs"
        key = self._key()
        if not stamp.exists() or stamp.read_text() != key:
            stamp.unlink(missing_ok=True)
            self._extract()
            shutil.rmtree(files, ignore_errors=True)
            done = subprocess.run(
                ["deploy/build-static", str(files)], cwd=self.directory,
                env=os.environ | self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            if done.returncode:
                raise Failed(f"the build in {self.directory} failed:\n{done.stdout[-4000:]}")
            stamp.write_text(key)
        # The files of an earlier commit with the same sources.
        seconds = int(self.environment["SOURCE_DATE_EPOCH"])
        for path in [files, *files.rglob("*")]:
            os.utime(path, (seconds, seconds))
        return files

    def _key(self) -> str:
        trees = [git(self.root, "rev-parse", f"HEAD:{path}") for path in INPUTS]
        compilers = [subprocess.run([name, "--version"], check=True, capture_output=True, text=True).stdout
                     for name in ("rustc", "musl-gcc")]
        return "\n".join(trees + compilers)

    def _extract(self) -> None:
        """Makes the directory that of HEAD. Unchanged files keep their time: cargo builds what is newer than its objects."""
        self.directory.mkdir(parents=True, exist_ok=True)
        clean = self.directory / "target/clean"
        shutil.rmtree(clean, ignore_errors=True)
        clean.mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", "HEAD"], cwd=self.root, stdout=subprocess.PIPE)
        subprocess.run(["tar", "--extract", "--touch"], cwd=clean, stdin=archive.stdout, check=True)
        if archive.wait():
            raise Failed("git archive failed")
        for path in clean.rglob("*"):
            old = self.directory / path.relative_to(clean)
            if _content(path) == _content(old):
                time_of_old = old.stat().st_mtime_ns
                os.utime(path, ns=(time_of_old, time_of_old))
        for entry in self.directory.iterdir():
            if entry.name != "target":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for entry in list(clean.iterdir()):
            entry.rename(self.directory / entry.name)


def _content(path: Path) -> object:
    """The bytes of a file, the names in a directory."""
    return sorted(os.listdir(path)) if path.is_dir() else path.read_bytes() if path.is_file() else None


def checkouts(root: Path, work: Path) -> list[Checkout]:
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    second_home = work / "cargo-home"
    second_home.mkdir(parents=True, exist_ok=True)
    (home / "registry").mkdir(parents=True, exist_ok=True)
    if not (second_home / "registry").is_symlink():
        (second_home / "registry").symlink_to(home / "registry")
    time_stamp = git(root, "log", "-1", "--format=%ct")
    common = {"SOURCE_DATE_EPOCH": time_stamp}
    other = common | {"CARGO_HOME": str(second_home), "TZ": "Pacific/Auckland", "LC_ALL": "C"}
    return [Checkout(root, work / "one", common), Checkout(root, work / "two/deeper", other)]


def compare(report: Report, root: Path, work: Path) -> list[Path]:
    """Builds twice and compares. Returns the directories with the files of both builds."""
    if git(root, "status", "--porcelain"):
        report.note("the work tree has changes that are not committed: this test builds HEAD, without them")
    files = []
    for number, checkout in enumerate(checkouts(root, work), 1):
        start = time.monotonic()
        files.append(checkout.build())
        binary = files[-1] / "usr/local/bin/ringq"
        report.note(f"build {number}: sha256 {sha256(binary)}, {binary.stat().st_size} bytes, "
                    f"{time.monotonic() - start:.0f} s")
    one, two = (_tree(path) for path in files)
    report.check("two builds of one commit are equal byte for byte, with names, modes and times",
                 one == two, _difference(files[0], files[1], one, two))
    binary = files[0] / "usr/local/bin/ringq"
    report.note(f"commit {git(root, 'rev-parse', 'HEAD')}")
    headers = subprocess.run(["readelf", "--program-headers", "--dynamic", binary], capture_output=True, text=True).stdout
    report.check("the binary is static: no interpreter, no shared library",
                 "INTERP" not in headers and "NEEDED" not in headers, headers)
    paths = [str(root), str(work), str(Path.home()), os.uname().nodename]
    content = binary.read_bytes()
    found = [path for path in paths if len(path) > 4 and path.encode() in content]
    report.check("the binary names no directory of this machine", not found, found)
    return files


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _tree(directory: Path) -> dict[str, tuple]:
    tree = {}
    for path in sorted(directory.rglob("*")):
        state = path.stat()
        tree[str(path.relative_to(directory))] = (oct(state.st_mode), int(state.st_mtime),
                                                  sha256(path) if path.is_file() else "")
    return tree


def _difference(one: Path, two: Path, first: dict, second: dict) -> str:
    lines = [f"{name}: {first.get(name)} and {second.get(name)}"
             for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]
    a, b = (directory / "usr/local/bin/ringq" for directory in (one, two))
    if a.exists() and b.exists() and sha256(a) != sha256(b):
        left, right = a.read_bytes(), b.read_bytes()
        at = next((i for i, (x, y) in enumerate(zip(left, right)) if x != y), min(len(left), len(right)))
        lines.append(f"the first different byte of the binary is {at:#x}; `diffoscope {a} {b}` shows the rest")
        for content in (left, right):
            lines.append(f"  {content[max(0, at - 32) : at + 64]!r}")
        sections = subprocess.run(["readelf", "--sections", "--wide", a], capture_output=True, text=True).stdout
        lines += [line for line in sections.splitlines() if line.strip().startswith("[")]
    return "\n".join(lines)
