"""Certificates of authorities that exist for one run, made by openssl."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

# By `openssl ca` a certificate can have any time.
AUTHORITY = """[ca]
default_ca=a
[a]
database=index.txt
new_certs_dir=.
rand_serial=yes
unique_subject=no
certificate=ca.pem
private_key=ca.key
default_md=sha256
policy=p
[p]
commonName=supplied
"""
NEW_KEY = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
HOUR = 3600


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """An authority in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.ca = directory / "ca.pem"
        (directory / "index.txt").touch()
        (directory / "authority").write_text(AUTHORITY)
        self._openssl(*NEW_KEY, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", f"/CN={directory.name}")

    def sign(self, name: str, names: str, start: float = -HOUR, end: float = HOUR) -> Pair:
        """Makes `name`.pem and `name`.key with these alternative names, valid between these seconds from now."""
        (self.directory / f"{name}.ext").write_text(f"subjectAltName={names}\n")
        self._openssl(*NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        first, last = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + at)) for at in (start, end))
        self._openssl(
            "ca", "-batch", "-notext", "-config", "authority", "-in", f"{name}.csr", "-out", f"{name}.pem",
            "-extfile", f"{name}.ext", "-startdate", first, "-enddate", last,
        )  # fmt: skip
        return Pair(self.directory / f"{name}.pem", self.directory / f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.directory, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr}")
