#!/usr/bin/env python3
"""How much later requests are answered while a balancer replaces itself: 99th percentiles of single seconds, beside those of seconds
in which nothing happens.

Eight nginx servers, and requests over connections that are kept, at a rate that the machine can hold. Compared with the
median of the five seconds before an upgrade are: the second in which it begins and the new process takes over, that in which it is over
and the old process drains (clients connect anew), the one after that, one in which nothing happens, and, with the seconds before it, one in
which another process of the same program starts that has nothing to do with clients. Medians and quartiles are printed, and written
to bench/results/upgrade.json.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import time

import soak
from console import QUICK, keep, spread

UPGRADES = 5 if QUICK else 20
# Seconds before the first upgrade, and from one to the next: what was before is quiet again by then.
FIRST, APART = 10, 16
# When another process starts, and when nothing happens, in seconds after an upgrade has begun: after it is over.
CONTROL, NOTHING = 10, 13


def ratios(rows, begins, ends):
    """99th percentiles of seconds around an upgrade, by the median of those before."""

    def by(second, before, count):
        return rows[second]["p99_us"] / statistics.median(row["p99_us"] for row in rows[before - count : before])

    return {
        "takes over": by(begins, begins, 5),
        "begins to drain": by(ends, begins, 5),
        "the second after that": by(ends + 1, begins, 5),
        "nothing happens": by(begins + NOTHING, begins, 5),
        "an unrelated process starts": by(begins + CONTROL, begins + CONTROL, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/evenkeel")
    parser.add_argument("--rate", type=int, default=3000, help="requests per second")
    args = parser.parse_args()
    with contextlib.ExitStack() as last:
        folder, servers = soak.set_up(last)
        balancer = soak.Balancer(args.binary, folder, servers)
        last.callback(balancer.end)
        beside = os.path.join(folder, "beside.toml")
        with open(beside, "w") as file:
            file.write(f'[rule.web]\nlisten = "127.0.0.1:0"\nmembers = ["127.0.0.1:{servers[0].port}"]\n')
        url = f"http://127.0.0.1:{balancer.http}/"
        load = soak.Load(args.binary, folder, "http", url, args.rate, FIRST + UPGRADES * APART, "--connections", "40")
        last.callback(load.process.kill)
        begun = time.monotonic()

        def until(second):
            """A second of the load begins: figures are of whole ones."""
            time.sleep(max(0, begun + second - time.monotonic()))

        upgrades = []
        for begins in range(FIRST, FIRST + UPGRADES * APART, APART):
            until(begins)
            balancer.upgrade()
            upgrades.append((begins, int(time.monotonic() - begun)))
            until(begins + CONTROL)
            other = subprocess.Popen([args.binary, "run", beside], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if "ready\n" not in other.stdout:
                raise SystemExit("the other process does not start")
            until(begins + CONTROL + 1)
            other.terminate()
            other.wait()
        found = load.found()
        with open(load.path) as file:
            rows = json.load(file)["per_second"]
    each = [ratios(rows, *upgrade) for upgrade in upgrades]
    told = {"rate": args.rate, "begun": found["begun"], "lost": found["lost"], "p99_us": statistics.median(row["p99_us"] for row in rows)}
    keep(told | {name: spread([one[name] for one in each]) for name in each[0]}, "upgrade")


if __name__ == "__main__":
    main()
