"""Mistakes with TLS: what is wrong with the server or the client, and what each of both must report."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from certificates import HOUR, Authority, Pair
from server import REPOSITORY, Failed

PAGE = REPOSITORY / "docs/tls.md"
HEAD = "| mistake | Go, grpcurl | Java | Python |"
# Time for which a certificate is valid that expires while the server uses it: at start an expired one is an error.
SHORT_SECONDS = 4


class Files:
    """The certificates of all cases."""

    def __init__(self, directory: Path) -> None:
        self.own = Authority(directory / "ringq-authority")
        self.other = Authority(directory / "other-authority")
        self.server = self.own.sign("localhost", "DNS:localhost")
        self.renamed = self.own.sign("ringq", "DNS:ringq.example")
        self.client = self.own.sign("client", "DNS:client.example")
        self.expired = self.own.sign("expired", "DNS:client.example", end=-HOUR / 2)
        self.foreign = self.other.sign("foreign", "DNS:client.example")
        self._short = 0

    def short(self) -> Pair:
        self._short += 1
        return self.own.sign(f"short-{self._short}", "DNS:localhost", end=SHORT_SECONDS)


@dataclass
class Case:
    title: str
    # `reason` of the failed handshake at the server; empty: none fails.
    reason: str = ""
    # That of single clients.
    reasons: dict[str, str] = field(default_factory=dict)
    host: str = "localhost"
    # Certificate of the server; None: it has no TLS.
    server: Callable[[Files], Pair] | None = lambda files: files.server
    # Whether each client must present a certificate.
    mutual: bool = False
    # Authority that the client trusts; None: it uses no TLS.
    trusted: Callable[[Files], Authority] | None = lambda files: files.own
    # Certificate of the client.
    client: Callable[[Files], Pair] | None = None
    token_is_known: bool = True
    # Part of each client's line; empty: that in the table of the page.
    line: str = ""

    def settings(self, files: Files) -> dict[str, Path]:
        """Returns the settings of the server."""
        if not self.server:
            return {}
        pair = self.server(files)
        settings = {"tls_cert": pair.cert, "tls_key": pair.key}
        return settings | ({"tls_client_ca": files.own.ca} if self.mutual else {})

    def flags(self, files: Files) -> list[str | Path]:
        """Returns the flags of the client."""
        flags = ["-ca", self.trusted(files).ca] if self.trusted else []
        pair = self.client(files) if self.client else None
        return flags + (["-cert", pair.cert, "-key", pair.key] if pair else [])


ANSWERED = " bytes"
# Python sends no alert, and looks at the name after the handshake.
CASES = [
    Case("none", line=ANSWERED),
    Case("none, with a client certificate", mutual=True, client=lambda files: files.client, line=ANSWERED),
    Case("another token", token_is_known=False, line="the token belongs to no identity of this server"),
    Case("the server's certificate is of another authority", "refused_by_client", {"python": "closed"},
         trusted=lambda files: files.other),
    Case("it is for another name", "refused_by_client", {"python": ""}, server=lambda files: files.renamed),
    Case("the client uses an IP address, not the name", "refused_by_client", {"python": ""}, host="127.0.0.1"),
    Case("it has expired", "refused_by_client", {"python": "closed"}, server=Files.short),
    Case("no TLS, the port has it", "plain_text", trusted=None),
    Case("TLS, the port has none", "tls_is_off", server=None),
    Case("no client certificate", "no_certificate", mutual=True),
    # Go and Java present only one whose authority the server names.
    Case("a client certificate of another authority", "no_certificate", {"python": "unknown_authority"}, mutual=True,
         client=lambda files: files.foreign),
    Case("an expired client certificate", "expired_certificate", mutual=True, client=lambda files: files.expired),
]  # fmt: skip


def lines_in_docs() -> dict[str, dict[str, str]]:
    """Returns the texts of the table in the page: by case and column a part of the client's line."""
    rest = PAGE.read_text().partition(HEAD)[2].splitlines()[2:]
    texts = {}
    for row in rest:
        if not row.startswith("|"):
            break
        title, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        spans = [re.findall("`([^`]+)`", cell) for cell in cells]
        if len(spans) != 3 or any(len(found) != 1 for found in spans):
            raise Failed(f"{PAGE.name}: this row has not one text for each client: {row}")
        texts[title] = dict(zip(("go", "java", "python"), (found[0] for found in spans)))
    titles = [case.title for case in CASES if not case.line]
    if list(texts) != titles:
        raise Failed(f"{PAGE.name}: the rows of {HEAD!r} are {list(texts)}, not {titles}")
    return texts
