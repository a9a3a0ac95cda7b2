#!/usr/bin/env python3
"""What open pages of the web console cost: of requests for each second, and of the balancer's CPU time.

Pages are what the console asks for: a stream of events of all groups, and one of a group with its members. With and
without them take turns. Ratios are of neighbours; the median and the quartiles of them are printed, and written to
bench/results/console.json.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

QUICK = os.environ.get("BENCH_QUICK") == "1"
ROUNDS = 6 if QUICK else 15
SECONDS = 5 if QUICK else 10
HERTZ = os.sysconf("SC_CLK_TCK")
EVENKEEL = sys.argv[1] if len(sys.argv) > 1 else "target/dist/evenkeel"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(port):
    for _ in range(200):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens on port {port}")


def cpu_seconds(pid):
    """User and system time of all threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


class Pages:
    """The streams that two open pages have."""

    def __init__(self, port, groups):
        self.sockets, began = [], []
        for query in ["", *[f"?group={group}" for group in groups]]:
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(f"GET /v1/events{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.sockets.append(one)
            began.append(threading.Event())
            threading.Thread(target=self.read, args=[one, began[-1]], daemon=True).start()
        # The first sample has all members.
        if not all(event.wait(10) for event in began):
            raise SystemExit("a stream has no sample")

    @staticmethod
    def read(one, began):
        seen = b""
        while data := one.recv(1 << 20):
            if not began.is_set():
                seen += data
                if b"event: sample" in seen:
                    began.set()

    def close(self):
        for one in self.sockets:
            one.shutdown(socket.SHUT_RDWR)
            one.close()


class Balancer:
    def __init__(self, folder, text):
        self.admin = free_port()
        path = os.path.join(folder, f"{self.admin}.toml")
        with open(path, "w") as file:
            file.write(f'[admin]\nlisten = "127.0.0.1:{self.admin}"\n{text}')
        self.process = subprocess.Popen([EVENKEEL, "run", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.admin)

    def end(self):
        self.process.terminate()
        self.process.wait()


def spread(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4), "rounds": len(values)}


def keep(found, name):
    """Prints what was found, and writes it to bench/results; a quick run replaces nothing there."""
    print(json.dumps(found, indent=1))
    os.makedirs("bench/results", exist_ok=True)
    path = f"bench/results/{name}.json"
    if not QUICK or not os.path.exists(path):
        with open(path, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


def alternate(balancer, groups, measure):
    """Ratios or differences of neighbours are the caller's: pairs (closed, open)."""
    pairs = []
    for number in range(ROUNDS):
        found = {}
        for is_open in (number % 2 == 0, number % 2 == 1):
            pages = Pages(balancer.admin, groups) if is_open else None
            found[is_open] = measure(balancer.process.pid)
            if pages:
                pages.close()
        pairs.append((found[False], found[True]))
    return pairs


def servers(folder):
    """Three servers of one nginx, that answer at once: the process, and their ports."""
    ports = [free_port() for _ in range(3)]
    lines = "".join(f'server {{ listen 127.0.0.1:{port}; location / {{ return 200 "ok"; }} }}\n' for port in ports)
    conf = os.path.join(folder, "nginx.conf")
    with open(conf, "w") as file:
        file.write(
            f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;\n"
            f"events {{}}\nhttp {{ access_log off; keepalive_requests 1000000000;\n{lines}}}\n"
        )
    nginx = subprocess.Popen(["nginx", "-c", conf, "-e", "/dev/null"], stderr=subprocess.DEVNULL)
    for port in ports:
        wait_for(port)
    return nginx, ports


def answered(port):
    """How many small requests are answered over 32 connections that are kept, as fast as they are."""
    words = ["wrk", "-t1", "-c32", f"-d{SECONDS}s", f"http://127.0.0.1:{port}/"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return int(next(line.split()[0] for line in told.splitlines() if " requests in " in line))


def requests(folder):
    nginx, members = servers(folder)
    port = free_port()
    names = ", ".join(f'"127.0.0.1:{member}"' for member in members)
    rule = f'[rule.web]\nlisten = "127.0.0.1:{port}"\nmembers = [{names}]\n'
    balancer = Balancer(folder, rule)
    wait_for(port)

    def measure(pid):
        before = cpu_seconds(pid)
        count = answered(port)
        return count, (cpu_seconds(pid) - before) / count

    measure(balancer.process.pid)
    pairs = alternate(balancer, ["web"], measure)
    balancer.end()
    nginx.terminate()
    nginx.wait()
    return {
        "requests": spread([opened[0] / closed[0] for closed, opened in pairs]),
        "cpu_per_request": spread([opened[1] / closed[1] for closed, opened in pairs]),
    }


def idle(folder, groups, members):
    """CPU time of open pages, as a share of a core, while nothing else goes on."""
    text = ""
    for group in range(groups):
        names = ", ".join(f'"127.{10 + group}.{member // 250}.{1 + member % 250}:9"' for member in range(members // groups))
        text += (
            f'[rule.r{group}]\nlisten = "127.0.0.1:{free_port()}"\ngroup = "g{group}"\n'
            f"[group.g{group}]\nhealth_check = false\nmembers = [{names}]\n"
        )
    balancer = Balancer(folder, text)

    def measure(pid):
        before = cpu_seconds(pid)
        time.sleep(SECONDS)
        return (cpu_seconds(pid) - before) / SECONDS

    pairs = alternate(balancer, ["g0"], measure)
    balancer.end()
    return {
        "closed": spread([closed for closed, _ in pairs]),
        "more_with_two_pages": spread([opened - closed for closed, opened in pairs]),
    }


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = {"seconds": SECONDS, "http": requests(folder)}
        for groups, members in [(20, 200), (1, 10_000)]:
            found[f"{members} members in {groups} groups"] = idle(folder, groups, members)
    keep(found, "console")


if __name__ == "__main__":
    main()
