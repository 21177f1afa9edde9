"""How the image reaches a Redis: by names of a cluster's DNS, and by TLS."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buildah import Buildah, Container, Mount
from network import SUFFIX, PodNetwork
from probes import http
from redis import HostRedis
from report import Report, wait_until

# More than fit into an answer by UDP; musl keeps 48.
MANY = 40


class Servers:
    """Starts servers of the image with one shard each."""

    def __init__(self, buildah: Buildah, image: str, network: PodNetwork) -> None:
        self.buildah, self.image, self.network = buildah, image, network
        self.address = network.add("server")

    @contextmanager
    def run(self, *arguments: str, mounts: list[Mount] | None = None, resolv_conf: Path | None = None) -> Iterator[Container]:
        all_mounts = [Mount(resolv_conf or self.network.resolv_conf, "/etc/resolv.conf", read_only=True), *(mounts or [])]
        # Only this test reaches the network of the pods.
        with Container(self.buildah, self.image, "server", environment={"RINGQ_INSECURE": "true"}, mounts=all_mounts,
                       network=self.network.namespace("server")) as server:
            server.start("serve", *arguments)
            wait_until(lambda: http(f"{self.address}:7701", "/healthz")[0] == 200, 10)
            yield server

    def is_ready(self, seconds: float = 10) -> bool:
        return wait_until(lambda: http(f"{self.address}:7701", "/readyz")[0] == 200, seconds)


def check_names(report: Report, servers: Servers, work: Path) -> None:
    network = servers.network
    network.add("redis-names")
    addresses = [network.add_address("redis-names", 100 + number) for number in range(MANY)]
    dns = network.dns
    dns.names |= {
        f"one.{SUFFIX}": [network.address("redis-names")],
        f"many.{SUFFIX}": addresses,
        f"six.{SUFFIX}": [network.address6("redis-names")],
        f"both.{SUFFIX}": [network.address("redis-names"), network.address6("redis-names")],
    }
    cases = {
        "one": "a short name, by the search domains and ndots of a pod",
        f"one.{SUFFIX}": "the full name of a Service",
        f"one.{SUFFIX}.": "the full name with a dot at its end",
        "many": f"a name with {MANY} addresses",
        "six": "a name with an IPv6 address only",
        "both": "a name with addresses of both families",
    }
    with HostRedis(network.namespace("redis-names"), work / "redis-names"):
        for name, text in cases.items():
            with servers.run("--shard", f"a=redis://{name}:6379") as server:
                report.check(f"DNS: {text}: {name}", servers.is_ready(), server.output())
        report.equal("DNS: the answer with many addresses came by TCP, after a cut one by UDP",
                     dns.transports(f"many.{SUFFIX}"), {"udp", "tcp"})
        with servers.run("--shard", "a=redis://late:6379") as server:
            early = servers.is_ready(2)
            dns.names[f"late.{SUFFIX}"] = [network.address("redis-names")]
            report.check("DNS: a name that appears after the start", not early and servers.is_ready(20), server.output())
        hosts = work / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{network.address('redis-names')} by-hosts\n")
        with servers.run("--shard", "a=redis://by-hosts:6379", mounts=[Mount(hosts, "/etc/hosts", read_only=True)]) as server:
            report.check("DNS: a name of /etc/hosts", servers.is_ready(), server.output())
    empty = work / "empty"
    empty.touch()
    with servers.run("--shard", "a=redis://nowhere:6379", resolv_conf=empty) as server:
        status, body = http(f"{servers.address}:7701", "/readyz")
        report.check("DNS: without a name server it is alive and not ready, and the log has the cause: " +
                     next((line for line in server.output().splitlines() if "nowhere" in line), ""),
                     http(f"{servers.address}:7701", "/healthz")[0] == 200 and status == 503
                     and "nowhere" in server.output(), f"{status} {body} {server.output()}")


def check_tls(report: Report, servers: Servers, work: Path) -> None:
    network = servers.network
    network.add("redis-tls")
    name = f"redis-tls.{SUFFIX}"
    network.dns.names[name] = [network.address("redis-tls")]
    certificates = work / "certificates"
    certificates.mkdir()
    _certificates(certificates, name)
    settings = certificates / "ringq.toml"
    settings.write_text('redis_ca = "/etc/tls/ca.pem"\n')
    for path in certificates.iterdir():
        path.chmod(0o644)
    options = ["--port", "0", "--tls-port", "6379", "--tls-auth-clients", "no", "--tls-cert-file", f"{certificates}/redis.pem",
               "--tls-key-file", f"{certificates}/redis.key", "--tls-ca-cert-file", f"{certificates}/ca.pem"]
    shard = ["--shard", f"a=rediss://{name}:6379"]
    directory = Mount(certificates, "/etc/tls", read_only=True)
    with HostRedis(network.namespace("redis-tls"), work / "redis-tls", *options):
        with servers.run(*shard, "--config", "/etc/tls/ringq.toml", mounts=[directory]) as server:
            report.check("TLS: a Redis whose certificate is of an own CA, by redis_ca", servers.is_ready(), server.output())
        bundle = Mount(certificates / "ca.pem", "/etc/ssl/certs/ca-certificates.crt", read_only=True)
        with servers.run(*shard, mounts=[bundle]) as server:
            report.check("TLS: the bundle of the image is what the server trusts: with the own CA in its place it connects",
                         servers.is_ready(), server.output())
        with servers.run(*shard) as server:
            report.check("TLS: without it the server refuses the certificate: " +
                         next((line for line in server.output().splitlines() if "ertificate" in line), ""),
                         not servers.is_ready(3) and "ertificate" in server.output(), server.output())
        network.dns.names[f"other-name.{SUFFIX}"] = [network.address("redis-tls")]
        with servers.run("--shard", "a=rediss://other-name:6379", mounts=[bundle]) as server:
            report.check("TLS: another host name than that of the certificate is refused", not servers.is_ready(3), server.output())


def _certificates(directory: Path, name: str) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", "/CN=own CA", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
            "-keyout", "redis.key", "-out", "redis.csr")
    (directory / "extensions").write_text(f"subjectAltName=DNS:{name}\n")
    openssl("x509", "-req", "-in", "redis.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "extensions", "-out", "redis.pem")
