"""A network of pods on this machine: a bridge, a network namespace with one address for each pod, and a DNS server."""

import os
import subprocess
from pathlib import Path

from dns_server import DnsServer

NAMESPACE = "queue"
SUFFIX = f"{NAMESPACE}.svc.cluster.local"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class PodNetwork:
    """The addresses 10.213.N.x and fd00:213:N::x; N is chosen by the process id, so that two runs do not meet."""

    def __init__(self, directory: Path) -> None:
        number = os.getpid() % 250
        self.prefix, self.prefix6 = f"10.213.{number}.", f"fd00:213:{number:x}::"
        self.bridge = f"ringq{number}"
        self._pods: dict[str, int] = {}
        self.gateway = self.prefix + "1"
        # As the kubelet writes it.
        self.resolv_conf = directory / "resolv.conf"
        self.resolv_conf.write_text(
            f"search {SUFFIX} svc.cluster.local cluster.local\nnameserver {self.gateway}\noptions ndots:5\n"
        )

    def __enter__(self) -> "PodNetwork":
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.gateway}/24", "dev", self.bridge)
        ip("address", "add", f"{self.prefix6}1/64", "dev", self.bridge, "nodad")
        ip("link", "set", self.bridge, "up")
        self.dns = DnsServer(self.gateway)
        return self

    def __exit__(self, *_: object) -> None:
        self.dns.close()
        for name in self._pods:
            ip("netns", "delete", self.namespace(name))
        ip("link", "delete", self.bridge)

    def namespace(self, pod: str) -> str:
        return f"{self.bridge}-{pod}"

    def add(self, pod: str) -> str:
        """Makes the network namespace of a pod if it has none, and returns its address."""
        if pod in self._pods:
            return self.address(pod)
        number = self._pods[pod] = len(self._pods) + 10
        namespace, outside = self.namespace(pod), f"{self.bridge}v{number}"
        ip("netns", "add", namespace)
        ip("link", "add", outside, "master", self.bridge, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("link", "set", outside, "up")
        ip("-netns", namespace, "link", "set", "lo", "up")
        ip("-netns", namespace, "link", "set", "eth0", "up")
        self.add_address(pod, number)
        ip("-netns", namespace, "route", "add", "default", "via", self.gateway)
        return self.address(pod)

    def add_address(self, pod: str, number: int) -> str:
        """Gives a pod one more address of each family. Returns that of IPv4."""
        namespace = self.namespace(pod)
        ip("-netns", namespace, "address", "add", f"{self.prefix}{number}/24", "dev", "eth0")
        ip("-netns", namespace, "address", "add", f"{self.prefix6}{number}/64", "dev", "eth0", "nodad")
        return f"{self.prefix}{number}"

    def address(self, pod: str) -> str:
        return f"{self.prefix}{self._pods[pod]}"

    def address6(self, pod: str) -> str:
        return f"{self.prefix6}{self._pods[pod]}"
