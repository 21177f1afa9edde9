"""A DNS server like that of a cluster: the names of Services have the addresses of their ready pods.

A and AAAA only. An answer above 512 bytes is cut by UDP, so that the client has to ask again by TCP.
"""

import ipaddress
import socket
import struct
import threading

A, AAAA = 1, 28
NO_ERROR, NAME_ERROR = 0, 3
UDP_MAX = 512


class DnsServer:
    def __init__(self, address: str) -> None:
        self.address = address
        # Full names in lower case, and their addresses of both families.
        self.names: dict[str, list[str]] = {}
        # Queries: name, type, transport.
        self.queries: list[tuple[str, int, str]] = []
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind((address, 53))
        self._tcp = socket.create_server((address, 53))
        for loop in (self._serve_udp, self._serve_tcp):
            threading.Thread(target=loop, daemon=True).start()

    def transports(self, name: str) -> set[str]:
        return {transport for asked, _, transport in self.queries if asked == name}

    def close(self) -> None:
        self._udp.close()
        self._tcp.close()

    def _serve_udp(self) -> None:
        while True:
            try:
                query, client = self._udp.recvfrom(4096)
            except OSError:
                return
            answer = self._answer(query, "udp")
            if len(answer) > UDP_MAX:
                flags = struct.unpack("!H", answer[2:4])[0] | 0x0200
                answer = answer[:2] + struct.pack("!HHHHH", flags, 1, 0, 0, 0) + query[12 : _question_end(query)]
            self._udp.sendto(answer, client)

    def _serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    size = struct.unpack("!H", connection.recv(2, socket.MSG_WAITALL))[0]
                    answer = self._answer(connection.recv(size, socket.MSG_WAITALL), "tcp")
                    connection.sendall(struct.pack("!H", len(answer)) + answer)
                except (OSError, struct.error):
                    pass

    def _answer(self, query: bytes, transport: str) -> bytes:
        end = _question_end(query)
        name = _name(query)
        kind = struct.unpack("!H", query[end - 4 : end - 2])[0]
        self.queries.append((name, kind, transport))
        known = self.names.get(name)
        records = []
        for address in map(ipaddress.ip_address, known or []):
            if (A if address.version == 4 else AAAA) == kind:
                records.append(struct.pack("!HHHIH", 0xC00C, kind, 1, 5, len(address.packed)) + address.packed)
        code = NAME_ERROR if known is None else NO_ERROR
        header = query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
        return header + query[12:end] + b"".join(records)


def _question_end(query: bytes) -> int:
    end = 12
    while query[end]:
        end += query[end] + 1
    return end + 5


def _name(query: bytes) -> str:
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii", "replace"))
        at += size + 1
    return ".".join(labels).lower()
