#!/usr/bin/env python3
"""How much later requests are answered while a balancer replaces itself: 99th percentiles of single seconds, beside those of seconds
in which nothing happens.

Eight nginx servers, and requests over connections that are kept, at a rate that the machine can hold. Each upgrade begins at the
begin of a second. Compared with the median of the five seconds before it are: the second in which the new process takes
over, that in which the old one begins to drain (five seconds later: clients connect anew), the one after that, and
one in which another process of the same program starts that has nothing to do with clients. Medians and quartiles are printed,
and written to bench/results/upgrade.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import soak

# Seconds from one upgrade to the next: one before is quiet again by then.
APART = 16
# When another process starts, after an upgrade.
CONTROL = 10


def sleep_until(when):
    time.sleep(max(0, when - time.monotonic()))


def ratios(rows, at):
    """99th percentiles of seconds around an upgrade, by the median of those before it."""
    p99 = lambda second: rows[at + second]["p99_us"]
    before = statistics.median(p99(second) for second in range(-5, 0))
    others = statistics.median(p99(second) for second in range(CONTROL - 3, CONTROL))
    return {
        "takes over": p99(0) / before,
        "begins to drain": p99(5) / before,
        "the second after that": p99(6) / before,
        "nothing happens": p99(CONTROL + 3) / before,
        "an unrelated process starts": p99(CONTROL) / others,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/evenkeel")
    parser.add_argument("--rate", type=int, default=3000, help="requests per second")
    parser.add_argument("--upgrades", type=int, default=20)
    parser.add_argument("--out", default="bench/results/upgrade.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        servers = [soak.Server(folder, number, port) for number, port in enumerate(soak.free_ports(soak.SERVERS))]
        for one in servers:
            one.start()
        balancer = soak.Balancer(args.binary, folder, servers)
        beside = os.path.join(folder, "beside.toml")
        with open(beside, "w") as file:
            file.write(f'[rule.web]\nlisten = "127.0.0.1:0"\nmembers = ["127.0.0.1:{servers[0].port}"]\n')
        first = 10
        seconds = first + args.upgrades * APART
        url = f"http://127.0.0.1:{balancer.http}/"
        load = soak.Load(args.binary, folder, "http", url, args.rate, seconds, "--connections", "40")
        begun = time.monotonic()
        for number in range(args.upgrades):
            at = begun + first + number * APART
            sleep_until(at)
            balancer.upgrade()
            sleep_until(at + CONTROL)
            other = subprocess.Popen([args.binary, "run", beside], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            sleep_until(at + CONTROL + 1)
            other.terminate()
            other.wait()
        found = load.found()
        with open(load.path) as file:
            rows = json.load(file)["per_second"]
        balancer.end()
        for one in servers:
            one.kill()
    each = [ratios(rows, first + number * APART) for number in range(args.upgrades)]
    told = {"rate": args.rate, "upgrades": args.upgrades, "begun": found["begun"], "lost": found["lost"], "p99_us": statistics.median(row["p99_us"] for row in rows)}
    for name in each[0]:
        low, middle, high = statistics.quantiles([one[name] for one in each], n=4)
        told[name] = {"median": round(middle, 3), "low": round(low, 3), "high": round(high, 3)}
    print(json.dumps(told, indent=1))
    with open(args.out, "w") as file:
        json.dump(told, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
