#!/usr/bin/env python3
"""A second implementation of the ring, from its description in docs/sharding.md alone: reads vectors on
standard input, writes them with the computed fingerprints and owners."""
import bisect
import hashlib
import sys


def sha256(data):
    return hashlib.sha256(data).digest()


def points(members):
    found = []
    for name, weight in members:
        for i in range(weight * 1024):
            digest = sha256(f"{name}:{i}".encode())
            found += [(int.from_bytes(digest[at : at + 8], "big"), name) for at in (0, 8, 16, 24)]
    return sorted(found)


def owner(ring, topic, job):
    place = int.from_bytes(sha256(f"{topic}\0{job}".encode())[:8], "big")
    return ring[bisect.bisect_left(ring, (place, "")) % len(ring)][1]


for line in sys.stdin.read().splitlines():
    words = line.split()
    if words and words[0] == "ring":
        members = sorted((name, int(weight)) for name, weight in (w.split(":") for w in words[2:]))
        ring = points(members)
        lines = "".join(f"{name}:{weight}\n" for name, weight in members)
        line = " ".join(["ring", sha256(lines.encode())[:8].hex(), *words[2:]])
    elif words and not line.startswith("#"):
        line = " ".join([owner(ring, *words[1:]), *words[1:]])
    print(line)
