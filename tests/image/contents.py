"""Two images of one commit are equal, and have nothing in them but the server."""

import os
import subprocess
from pathlib import Path

from buildah import Buildah
from builds import git
from report import Failed, Report

FILES = ["data", "etc", "etc/group", "etc/passwd", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt",
         "usr", "usr/local", "usr/local/bin", "usr/local/bin/ringq"]


def build(report: Report, root: Path, stores: list[Buildah], files: list[Path], name: str) -> None:
    """Builds an image of each directory of files into a store of its own by deploy/image, and compares."""
    revision = git(root, "rev-parse", "HEAD")
    environment = {"ENGINE": "buildah", "REVISION": revision, "SOURCE_DATE_EPOCH": git(root, "log", "-1", "--format=%ct")}
    for store, directory in zip(stores, files):
        done = subprocess.run(["deploy/image", "--files", str(directory), name], cwd=root, capture_output=True, text=True,
                              env=store.environment | environment)
        if done.returncode:
            raise Failed(f"deploy/image: {done.stdout}{done.stderr}")
    one, two = (store.image(name) for store in stores)
    report.equal("two images of one commit have one digest", two["FromImageDigest"], one["FromImageDigest"])
    report.equal("and equal layers and settings", (two["OCIv1"], two["FromImageID"]), (one["OCIv1"], one["FromImageID"]))
    report.note(f"digest {one['FromImageDigest']}, image {one['FromImageID']}, "
                f"layers {' '.join(one['OCIv1']['rootfs']['diff_ids'])}")
    config = one["OCIv1"]["config"]
    labels = config["Labels"]
    version = next(line.split('"')[1] for line in (root / "Cargo.toml").read_text().splitlines() if line.startswith("version = "))
    report.equal("labels: version and revision", (labels["org.opencontainers.image.version"],
                 labels["org.opencontainers.image.revision"]), (version, revision))
    report.check("labels: title, description, licenses", all(
        labels.get(f"org.opencontainers.image.{key}") for key in ("title", "description", "licenses")), labels)
    report.equal("the user is a number that is not root", config["User"], "65532:65532")
    container = stores[0].run("from", "--pull-never", name)
    mounted = Path(stores[0].run("mount", container))
    found = sorted(str(path.relative_to(mounted)) for path in mounted.rglob("*"))
    report.equal("there is no file in the image but these: " + " ".join(FILES), found, FILES)
    state = (mounted / "data").stat()
    report.equal("/data belongs to the user", (state.st_uid, state.st_gid, oct(state.st_mode & 0o777)), (65532, 65532, "0o755"))
    owned = [str(path) for path in mounted.rglob("*") if path.name != "data" and (path.stat().st_uid or path.stat().st_mode & 0o022)]
    report.check("all else belongs to root and is writable by no other user", not owned, owned)
    special = [path for path in found if os.lstat(mounted / path).st_mode & 0o6000]
    report.check("no file is setuid or setgid", not special, special)
    size = sum(path.stat().st_size for path in mounted.rglob("*") if path.is_file())
    report.note(f"size of the files: {size / 1e6:.1f} MB")
    stores[0].run("rm", container)
