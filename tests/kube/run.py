#!/usr/bin/env python3
"""Installs, changes and removes the chart and the plain manifests on a real API server, and uses its ServiceAccounts.

`./install` gets the programs. RINGQ_BIN is the server, default target/debug/ringq. Prints a line for each check that holds,
and ends with 1 at the first that does not.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

import server
from checks import accounts, disruption, install, plain, upgrade, values
from cluster import PROGRAMS, REPOSITORY, Cluster, Failed
from release import Release, ok


def chart(cluster: Cluster) -> None:
    release = Release(cluster, "defaults")
    release.create()
    install.accepted(release)
    first = release.settled()
    install.helm_test(release)
    install.selectors(release)
    install.no_rights(release)
    disruption.evictions(release)
    disruption.node_drain(release)
    upgrade.nothing_changed(release)
    upgrade.store_changed(release)
    upgrade.shard_added(release)
    upgrade.shard_retired(release)
    upgrade.shard_removed(release)
    upgrade.image_changed(release)
    upgrade.redis_changed(release)
    upgrade.image_broken(release)
    upgrade.rolled_back(release, first)
    # It leaves an annotation that Helm does not own.
    upgrade.restarted(release)
    upgrade.scaled(release)
    upgrade.weighted(release)
    upgrade.password_named(release)
    plain.definitions(cluster)
    plain.monitoring(release)
    upgrade.autoscaled(release)
    upgrade.removed(release)
    values.external(cluster)
    values.sqlite(cluster)
    values.refusals(cluster)
    values.values_files(cluster)
    plain.manifests(cluster)
    plain.examples(cluster)
    upgrade.broken_sets(cluster)


# The last one takes the keys away with which tokens of the cluster's own controllers are signed.
PARTS = {"chart": chart, "accounts": accounts.everything}


def main() -> int:
    options = parse()
    parts = [options.only] if options.only else list(PARTS)
    start = time.monotonic()
    # An exception, so that what was started ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ringq-kube-") as directory:
        cluster = Cluster(Path(directory), options.helm.absolute())
        try:
            if "accounts" in parts:
                server.programs()
            cluster.start()
            ok(f"cluster: started in {time.monotonic() - start:.1f} s")
            for name in parts:
                PARTS[name](cluster)
        except Failed as error:
            print(f"FAILED {error}\n{cluster.ended()}", file=sys.stderr)
            return 1
        finally:
            cluster.stop()
    print(f"kube: all checks hold, {time.monotonic() - start:.0f} s")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="check this part alone; default: all")
    own = REPOSITORY / ".tools/bin/helm"
    parser.add_argument("--helm", type=Path, default=own if own.exists() else PROGRAMS / "helm", help="the helm to use")
    return parser.parse_args()


sys.exit(main())
