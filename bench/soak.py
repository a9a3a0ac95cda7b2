#!/usr/bin/env python3
"""Runs a balancer under load for a long time while everything around it changes, and judges what was lost and what grew.

Eight nginx servers stand behind it, and clients send requests over HTTP/1.1, HTTP/1.1 with TLS, HTTP/2 with TLS, and TCP.
Meanwhile servers are killed and come back, members are added and removed, the configuration is reloaded, the balancer
replaces itself by a new process, and hostile clients do what they can. Memory, files and threads are read each five seconds.

Upgrades come in the first third of the time, and once more in the last minute. Between them one process serves, and what it uses
in the first and in the last part of that time is compared. Exit code 0: nothing was lost, nothing grew.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

SERVERS = 8
# Servers that may be away at the same time: the others hold the load.
AWAY = 2
# What may grow between the first and the last part of the time in which one process serves.
GROWTH = 0.02
# Files and threads follow connections and lists of members; as many more than at the beginning are no leak.
FILES = 20
THREADS = 2


def free_ports(count):
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
        return ports


def wait_for(port, what):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"{what} does not listen on port {port}")


class Server:
    """An nginx that can be killed and started again."""

    def __init__(self, folder, number, port):
        self.port = port
        self.conf = os.path.join(folder, f"nginx-{number}.conf")
        # Those behind the TCP rule are alike, as its clients await so many bytes.
        body = "x" * (100 + 500 * min(number, SERVERS - 2))
        with open(self.conf, "w") as file:
            file.write(
                f"daemon off; master_process off; pid {folder}/nginx-{number}.pid; error_log /dev/null;\n"
                "events { worker_connections 4096; }\n"
                "http { access_log off; keepalive_requests 1000000000;\n"
                f'server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ return 200 "{body}"; }} }} }}\n'
            )
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            ["nginx", "-c", self.conf, "-e", "/dev/null"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self.port, "nginx")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def length(self):
        """How many bytes a response has, its head included."""
        with socket.create_connection(("127.0.0.1", self.port)) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            return len(b"".join(iter(lambda: one.recv(65536), b"")))


def set_up(last):
    """A folder, and servers in it, for as long as `last`."""
    folder = last.enter_context(tempfile.TemporaryDirectory())
    servers = [Server(folder, number, port) for number, port in enumerate(free_ports(SERVERS))]
    for one in servers:
        one.start()
        last.callback(one.kill)
    return folder, servers


class Balancer:
    """The balancer, whose process changes with each upgrade."""

    def __init__(self, binary, folder, servers):
        self.binary, self.folder, self.servers = binary, folder, servers
        self.path = os.path.join(folder, "evenkeel.toml")
        self.admin, self.http, self.https, self.tcp = free_ports(4)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj",
             "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"],
            check=True, capture_output=True,
        )
        self.members = list(servers)
        self.write()
        self.log = open(os.path.join(folder, "evenkeel.log"), "ab")
        self.child = subprocess.Popen([binary, "run", self.path], stdout=subprocess.DEVNULL, stderr=self.log)
        wait_for(self.admin, "the balancer's admin API")
        wait_for(self.http, "the balancer")
        self.pid = self.process()["pid"]

    def write(self, strategy="adaptive"):
        """A new configuration, as an editor or a tool writes it: beside, and then in its place."""
        names = ", ".join(f'"127.0.0.1:{one.port}"' for one in self.members)
        steady = ", ".join(f'"127.0.0.1:{one.port}"' for one in self.servers[SERVERS - 2:])
        text = (
            'shutdown_grace = "20s"\n'
            f'[admin]\nlisten = "127.0.0.1:{self.admin}"\n'
            f'[rule.http]\nlisten = "127.0.0.1:{self.http}"\nprotocol = "http"\ngroup = "servers"\nheader_timeout = "5s"\n'
            f'[rule.https]\nlisten = "127.0.0.1:{self.https}"\nprotocol = "http"\ngroup = "servers"\nheader_timeout = "5s"\n'
            f'[rule.https.tls]\ncertificates = [{{ certificate = "cert.pem", key = "key.pem" }}]\n'
            f'[rule.tcp]\nlisten = "127.0.0.1:{self.tcp}"\nprotocol = "tcp"\nmembers = [{steady}]\n'
            f'[group.servers]\nstrategy = "{strategy}"\nmembers = [{names}]\n'
            '[group.servers.health_check]\ninterval = "500ms"\n'
        )
        beside = self.path + ".new"
        with open(beside, "w") as file:
            file.write(text)
        os.replace(beside, self.path)

    def ctl(self, *words):
        return subprocess.run(
            [self.binary, "ctl", "--admin", f"127.0.0.1:{self.admin}", "--json", *words], capture_output=True, text=True, timeout=60
        )

    def process(self):
        told = self.ctl("process")
        if told.returncode != 0:
            raise SystemExit(f"evenkeel ctl process: {told.stderr}")
        return json.loads(told.stdout)

    def upgrade(self):
        told = subprocess.run(
            [self.binary, "upgrade", "--admin", f"127.0.0.1:{self.admin}"], capture_output=True, text=True, timeout=120
        )
        if told.returncode != 0:
            raise SystemExit(f"evenkeel upgrade: {told.stderr}")
        self.pid = self.process()["pid"]

    def usage(self):
        with open(f"/proc/{self.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return {
            "memory": int(fields["VmRSS"].split()[0]) * 1024,
            "files": len(os.listdir(f"/proc/{self.pid}/fd")),
            "threads": int(fields["Threads"]),
        }

    def end(self):
        """Answers whether the last process ends when it is told to."""
        os.kill(self.pid, signal.SIGTERM)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self.child.poll()
            try:
                with open(f"/proc/{self.pid}/stat") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return True
            except FileNotFoundError:
                return True
            time.sleep(0.1)
        return False


class Load:
    """`evenkeel-lab load`, which counts what gets no answer."""

    def __init__(self, binary, folder, name, url, rate, seconds, *more):
        self.name, self.path = name, os.path.join(folder, f"load-{name}.json")
        self.log = open(os.path.join(folder, f"load-{name}.log"), "wb")
        self.process = subprocess.Popen(
            [binary, "load", url, "--rate", str(rate), "--duration", f"{seconds}s", "--timeout", "20s", "--quiet", "--json", self.path, *more],
            stdout=self.log, stderr=self.log,
        )

    def found(self):
        self.process.wait()
        if not os.path.exists(self.path):
            with open(self.log.name) as file:
                raise SystemExit(f"evenkeel-lab load ({self.name}) has failed:\n{file.read()}")
        with open(self.path) as file:
            all_figures = json.load(file)
        good = sum(count for status, count in all_figures["statuses"].items() if status == "200")
        lost = sum(all_figures["errors"].values()) + sum(all_figures["statuses"].values()) - good
        return {
            "begun": all_figures["begun"],
            "answered": all_figures["answered"],
            "lost": lost,
            "errors": all_figures["errors"],
            "statuses": all_figures["statuses"],
            "p50_us": all_figures["from_send_us"]["p50"],
            "p99_us": all_figures["from_send_us"]["p99"],
            "max_us": all_figures["from_send_us"]["max"],
        }


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!I", len(payload))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + payload


class Attacker:
    """Clients that mean harm, a thread for each kind. Each waits a little between its turns."""

    def __init__(self, balancer, seed):
        self.balancer, self.stop, self.turns = balancer, threading.Event(), {}
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self.h2 = context
        kinds = [self.slow_heads, self.garbage, self.large_heads, self.half_requests, self.smuggling, self.garbage_in_tls, self.resets, self.slow_readers]
        self.threads = [threading.Thread(target=self.turn, args=[kind, random.Random(seed + number)]) for number, kind in enumerate(kinds)]
        for one in self.threads:
            one.start()

    def turn(self, kind, rng):
        while not self.stop.wait(0.2 + rng.random()):
            # That the balancer closes these connections is what should happen.
            with contextlib.suppress(OSError, ssl.SSLError):
                kind(rng)
            self.turns[kind.__name__] = self.turns.get(kind.__name__, 0) + 1

    def connect(self, port):
        return socket.create_connection(("127.0.0.1", port), timeout=10)

    def slow_heads(self, rng):
        with contextlib.ExitStack() as held:
            all_of_them = [held.enter_context(self.connect(self.balancer.http)) for _ in range(50)]
            for byte in b"GET / HTTP/1.1\r\nHost: a":
                for one in all_of_them:
                    with contextlib.suppress(OSError):
                        one.send(bytes([byte]))
                if self.stop.wait(0.3):
                    return

    def garbage(self, rng):
        with self.connect(rng.choice([self.balancer.http, self.balancer.https])) as one:
            one.sendall(rng.randbytes(rng.randrange(1, 20_000)))
            one.recv(1000)

    def large_heads(self, rng):
        with self.connect(self.balancer.http) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
            for number in range(1000):
                one.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))

    def half_requests(self, rng):
        with self.connect(self.balancer.http) as one:
            one.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbegun")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def smuggling(self, rng):
        with self.connect(self.balancer.http) as one:
            one.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n")
            one.recv(1000)

    def garbage_in_tls(self, rng):
        with self.h2.wrap_socket(self.connect(self.balancer.https)) as one:
            one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + rng.randbytes(2000))
            one.recv(1000)

    def resets(self, rng):
        """Streams that are reset at once (CVE-2023-44487)."""
        with self.h2.wrap_socket(self.connect(self.balancer.https)) as one:
            one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
            # :method GET, :scheme https, :path /, :authority a
            head = b"\x82\x87\x84\x41\x01a"
            for stream in range(1, 2001, 2):
                one.sendall(frame(1, 5, stream, head) + frame(3, 0, stream, struct.pack("!I", 8)))

    def slow_readers(self, rng):
        with contextlib.ExitStack() as held:
            for _ in range(20):
                one = held.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                one.settimeout(10)
                one.connect(("127.0.0.1", self.balancer.http))
                one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
            self.stop.wait(3)

    def end(self):
        self.stop.set()
        for one in self.threads:
            one.join()
        return self.turns


class Changes:
    """What administrators and accidents do, by one thread, so that it is never more than was planned at a time."""

    def __init__(self, balancer, servers, rng):
        self.balancer, self.servers, self.rng = balancer, servers, rng
        self.away = []
        self.counts = {"kills": 0, "reloads": 0, "member_changes": 0, "strategy_changes": 0, "upgrades": 0}

    def step(self):
        """Something is done; the caller waits before the next."""
        self.rng.choice([self.kill, self.kill, self.kill, self.reload, self.change_members, self.change_strategy])()

    def kill(self):
        # The last two serve the TCP rule, whose sessions cannot be moved.
        here = [one for one in self.servers[:-2] if one not in self.away]
        if len(self.away) >= AWAY:
            self.away.pop(0).start()
        else:
            one = self.rng.choice(here)
            one.kill()
            self.away.append(one)
            self.counts["kills"] += 1

    def reload(self):
        self.balancer.write()
        os.kill(self.balancer.pid, signal.SIGHUP)
        self.counts["reloads"] += 1

    def change_members(self):
        count = self.rng.randrange(SERVERS - 2, SERVERS + 1)
        self.balancer.members = self.rng.sample(self.servers[:-2], count - 2) + self.servers[-2:]
        self.balancer.write()
        self.counts["member_changes"] += 1

    def change_strategy(self):
        self.balancer.write(self.rng.choice(["adaptive", "least_request", "round_robin", "peak_ewma", "prequal"]))
        self.counts["strategy_changes"] += 1

    def upgrade(self):
        self.balancer.upgrade()
        self.counts["upgrades"] += 1


def judge(samples, counts, loads, has_ended):
    """Lines with a verdict each, and whether all are good."""
    lines, good = [], True

    def line(name, text, is_good):
        nonlocal good
        good &= is_good
        lines.append(f"{name:10} {text:60} {'good' if is_good else 'BAD'}")

    for load in loads:
        text = f"{load['begun']} begun, {load['answered']} answered, {load['lost']} lost"
        if load["lost"]:
            text += f" {load['errors']} {load['statuses']}"
        line(load["name"], text, load["lost"] == 0 and load["answered"] > 0)
    if len(samples) >= 10:
        part = max(len(samples) // 5, 3)
        first, last = samples[:part], samples[-part:]
        for what, most in (("memory", None), ("files", FILES), ("threads", THREADS)):
            before, after = (statistics.median(one[what] for one in some) for some in (first, last))
            growth = after / before - 1
            shown = f"{before / 1e6:.1f} to {after / 1e6:.1f} MB ({growth:+.1%})" if what == "memory" else f"{before:.0f} to {after:.0f}"
            line(what, shown, growth < GROWTH if most is None else after <= before + most)
    else:
        line("growth", "too short to tell: at least 3 minutes are needed", True)
    line("end", "the process ends when it is told to" if has_ended else "the process does not end within 60 s", has_ended)
    lines.append("done: " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items()))
    return lines, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/evenkeel")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=2000, help="requests per second, of all clients")
    parser.add_argument("--upgrades", type=int, help="how many in the first third; a third of the minutes without this, at least 2; 0: none at all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="where all figures are written")
    args = parser.parse_args()
    for program in ("nginx", "openssl"):
        if not shutil.which(program) and not os.path.exists(f"/usr/sbin/{program}"):
            raise SystemExit(f"{program} is not installed: scripts/setup bench does that")
    with contextlib.ExitStack() as last:
        folder, servers = set_up(last)
        good = soak(args, folder, servers)
    sys.exit(0 if good else 1)


def soak(args, folder, servers):
    rng = random.Random(args.seed)
    balancer = Balancer(args.binary, folder, servers)
    seconds = args.minutes * 60
    shares = (("http", 0.5, f"http://127.0.0.1:{balancer.http}/", ["--connections", "60"]),
              ("https", 0.2, f"https://127.0.0.1:{balancer.https}/", ["--connections", "40", "--insecure"]),
              ("http2", 0.2, f"https://127.0.0.1:{balancer.https}/", ["--connections", "10", "--insecure", "--http2"]),
              ("tcp", 0.1, f"tcp://127.0.0.1:{balancer.tcp}", ["--connections", "40", "--connect", "--send",
               r"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "--receive", str(servers[-1].length())]))
    lab = os.path.join(os.path.dirname(args.binary), "evenkeel-lab")
    loads = [Load(lab, folder, name, url, max(int(args.rate * share), 1), seconds, *more) for name, share, url, more in shares]
    attacker = Attacker(balancer, args.seed)
    changes = Changes(balancer, servers, rng)
    begin = time.monotonic()
    early = max(int(args.minutes / 3), 2) if args.upgrades is None else args.upgrades
    upgrades = [seconds / 3 * (number + 1) / (early + 1) for number in range(early)]
    until = seconds - min(40, seconds / 6)
    upgrades += [until] if early else []
    steady = (seconds / 3 + min(120, seconds / 10), until)
    samples, next_sample, next_change = [], 0.0, 2.0
    try:
        while (now := time.monotonic() - begin) < seconds:
            if upgrades and now >= upgrades[0]:
                upgrades.pop(0)
                changes.upgrade()
            elif now >= next_change and now < seconds - 10:
                changes.step()
                next_change = now + rng.uniform(0.5, 4)
            if now >= next_sample:
                usage = balancer.usage() | {"at": round(now, 1), "pid": balancer.pid}
                if steady[0] <= now < steady[1]:
                    samples.append(usage)
                next_sample = now + 5
                if sys.stderr.isatty():
                    print(f"\r{now:7.0f} s  {usage['memory'] / 1e6:.1f} MB  {usage['files']} files  {changes.counts}", end="", file=sys.stderr)
            time.sleep(0.05)
        found = [load.found() | {"name": load.name} for load in loads]
    finally:
        for load in loads:
            load.process.kill()
        attacks = attacker.end()
        has_ended = balancer.end()
    lines, good = judge(samples, changes.counts | {f"attacks of {kind}": count for kind, count in attacks.items()}, found, has_ended)
    print("\n".join(lines))
    if not good:
        with open(os.path.join(folder, "evenkeel.log"), errors="replace") as file:
            print("the last lines of the balancer's log:\n" + "".join(file.readlines()[-30:]))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"minutes": args.minutes, "rate": args.rate, "good": good, "loads": found, "changes": changes.counts, "attacks": attacks, "samples": samples}, file, indent=1)
            file.write("\n")
    return good


if __name__ == "__main__":
    main()
