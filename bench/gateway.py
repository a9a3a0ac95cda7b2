#!/usr/bin/env python3
"""How the controller of the Gateway API copes with many routes, and what a pod that fails still gets.

A kube-apiserver with an etcd (scripts/kubernetes builds both), a balancer with [kubernetes.gateway], and pods that are ports of this
process. All endpoints answer: their addresses are all local. Parts:

- scale: routes come one by one until there are all of them, while a client asks for the first of them; memory and CPU time of the
  balancer then, at rest.
- changes: a further route comes and goes, again and again: time from the API server's answer until the route is in effect, and until it is
  no longer in effect.
- leaving: all further routes go one by one, while the client asks on.
- failing: one of four pods fails half or all of its requests, with the defaults of the balancer and without retries: its share of the
  requests from two seconds after it has begun, and from two seconds after it has ended.

Medians and quartiles are printed, and written to bench/results/gateway.json.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import ssl
import statistics
import subprocess
import tempfile
import threading
import time

from console import QUICK, cpu_seconds, free_port

ROUTES, ENDPOINTS, SERVICES = (500, 2000, 100) if QUICK else (5000, 20_000, 1000)
CHANGES = int(os.environ.get("CHANGES", 30 if QUICK else 200))
# Requests per second of the client that asks while routes change.
RATE = 200
# Requests per second, and seconds of each phase, while a pod fails.
FAILING_RATE, PHASE = 200, 6 if QUICK else 12
# Time that the balancer has to see that a pod fails, or is well again.
SEEN = 2
GROUP = "/apis/gateway.networking.k8s.io/v1"
SHOP = f"{GROUP}/namespaces/shop"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# All addresses of this network are local while the program runs.
NETWORK = "10.201.0.0/16"


class Cluster:
    """kube-apiserver with an etcd of its own."""

    def __init__(self, programs, folder, last):
        self.folder, self.port = folder, free_port()
        store, peers = free_port(), free_port()
        self.start(
            last,
            f"{programs}/etcd",
            f"--data-dir={folder}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{store}",
            f"--advertise-client-urls=http://127.0.0.1:{store}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",
        )
        key = f"{folder}/account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        with open(f"{folder}/tokens.csv", "w") as file:
            file.write('secret,admin,1,"system:masters"\n')
        self.start(
            last,
            f"{programs}/kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens.csv",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            # The program is one client with many questions.
            "--max-requests-inflight=2000",
        )
        self.connection = None
        self.wait("the API server", lambda: self.ask("GET", "/readyz")[0] == 200)

    def start(self, last, *command):
        name = os.path.basename(command[0])
        with open(f"{self.folder}/{name}.log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        last.callback(process.wait)
        last.callback(process.kill)

    @staticmethod
    def wait(what, holds, limit=120):
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if holds():
                    return
            time.sleep(0.05)
        raise SystemExit(f"{what} is not ready after {limit} s")

    def ask(self, method, path, body=None, media_type="application/json"):
        """Sends a request over a connection that is kept. Returns the status and the answer."""
        for fresh in (False, True):
            if self.connection is None or fresh:
                context = ssl._create_unverified_context()
                self.connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=60)
            try:
                fields = {"Authorization": "Bearer secret", "Content-Type": media_type}
                self.connection.request(method, path, body, fields)
                answer = self.connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                self.connection = None
                if fresh:
                    raise
        raise AssertionError

    def create(self, path, kind, name, **fields):
        # /api/VERSION/... or /apis/GROUP/VERSION/...
        parts = path.split("/")
        version = parts[2] if parts[1] == "api" else "/".join(parts[2:4])
        labels = fields.pop("labels", {})
        thing = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, **fields}
        status, answer = self.ask("POST", path, json.dumps(thing))
        if status not in (200, 201):
            raise SystemExit(f"{path}/{name}: {status}: {answer[:300]!r}")

    def delete(self, path, name):
        status, answer = self.ask("DELETE", f"{path}/{name}")
        if status != 200:
            raise SystemExit(f"{path}/{name}: {status}: {answer[:300]!r}")

    def kubeconfig(self):
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "shop",
                "clusters": [
                    {
                        "name": "here",
                        "cluster": {
                            "server": f"https://127.0.0.1:{self.port}",
                            "certificate-authority": f"{self.folder}/certificates/apiserver.crt",
                        },
                    }
                ],
                "users": [{"name": "balancer", "user": {"token": "secret"}}],
                "contexts": [{"name": "shop", "context": {"cluster": "here", "user": "balancer"}}],
            }
        )

    def service(self, name, slices):
        """Creates a service, with a slice for each pair of addresses and port."""
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        self.create("/api/v1/namespaces/shop/services", "Service", name, spec={"ports": ports})
        for number, (addresses, port) in enumerate(slices):
            self.create(
                "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
                "EndpointSlice",
                f"{name}-{number}",
                labels={"kubernetes.io/service-name": name},
                addressType="IPv4",
                endpoints=[{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
                ports=[{"name": "http", "protocol": "TCP", "port": port}],
            )

    def route(self, name, service):
        spec = {
            "parentRefs": [{"name": "front"}],
            "hostnames": [f"{name}.example"],
            "rules": [{"backendRefs": [{"name": service, "port": 80}]}],
        }
        self.create(f"{SHOP}/httproutes", "HTTPRoute", name, spec=spec)


class Pods:
    """Servers in a thread of their own; each port is a pod that counts its requests, and fails some of them."""

    def __init__(self, count):
        self.ports, self.fails, self.counts = [], [0.0] * count, [0] * count
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.run(count, ready)), daemon=True).start()
        ready.wait()

    async def run(self, count, ready):
        servers = []
        for pod in range(count):
            server = await asyncio.start_server(lambda r, w, pod=pod: self.serve(pod, r, w), "0.0.0.0", 0, backlog=1024)
            self.ports.append(server.sockets[0].getsockname()[1])
            servers.append(server.serve_forever())
        ready.set()
        await asyncio.gather(*servers)

    async def serve(self, pod, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.counts[pod] += 1
                status = b"500 No" if random.random() < self.fails[pod] else b"200 OK"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
        writer.close()


class Client:
    """Client of the gateway: one connection, kept."""

    def __init__(self, port):
        self.port, self.connection = port, None

    def ask(self, host):
        """Returns the status, or None if the connection failed."""
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            self.connection.request("GET", "/", headers={"Host": host})
            answer = self.connection.getresponse()
            answer.read()
            if answer.will_close:
                self.connection = None
            return answer.status
        except (OSError, http.client.HTTPException):
            self.connection = None
            return None

    def wait_for(self, host, status, limit=60):
        """Waits for a status; returns the moment at which the request with this answer was sent."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            asked = time.monotonic()
            if self.ask(host) == status:
                return asked
        raise SystemExit(f"{host} does not answer {status} within {limit} s")


class Steady:
    """A client that asks at a rate, in a thread of its own, and counts the requests that were not answered with 200."""

    def __init__(self, port, host, rate):
        self.client, self.host, self.rate = Client(port), host, rate
        self.asked, self.lost, self.ends = 0, 0, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        due = time.monotonic()
        while not self.ends.is_set():
            self.asked += 1
            self.lost += self.client.ask(self.host) != 200
            due += 1 / self.rate
            time.sleep(max(0, due - time.monotonic()))

    def end(self):
        self.ends.set()
        self.thread.join()
        return {"asked": self.asked, "lost": self.lost}


def memory_mb(pid):
    with open(f"/proc/{pid}/status") as file:
        rows = dict(line.split(":", 1) for line in file if ":" in line)
    return int(rows["VmRSS"].split()[0]) / 1000


def spread(values):
    """Quartiles, and the 99th percentile."""
    ordered = sorted(values)
    low, middle, high = statistics.quantiles(ordered, n=4)
    return {"quartiles": [low, middle, high], "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]}


def measure_scale(cluster, port, balancer, pods):
    addresses = [f"10.201.{number // 250}.{number % 250 + 1}" for number in range(ENDPOINTS)]
    each = ENDPOINTS // SERVICES
    for number in range(SERVICES):
        cluster.service(f"s{number}", [(addresses[number * each : (number + 1) * each], pods.ports[4])])
    cluster.route("r0", "s0")
    client = Client(port)
    client.wait_for("r0.example", 200)
    steady, began, cpu = Steady(port, "r0.example", RATE), time.monotonic(), cpu_seconds(balancer.pid)
    for number in range(1, ROUTES):
        cluster.route(f"r{number}", f"s{number % SERVICES}")
    last = time.monotonic()
    client.wait_for(f"r{ROUTES - 1}.example", 200, limit=600)
    elapsed = time.monotonic() - began
    found = {
        "routes": ROUTES,
        "endpoints": ENDPOINTS,
        "routes_per_s": (ROUTES - 1) / (last - began),
        "last_in_effect_after_s": time.monotonic() - last,
        "cpu_while_they_come": (cpu_seconds(balancer.pid) - cpu) / elapsed,
        **steady.end(),
    }
    # Statuses of all routes are written in this time.
    wait = 10 if QUICK else 60
    time.sleep(wait)
    cpu = cpu_seconds(balancer.pid)
    time.sleep(wait)
    found["cpu_at_rest"] = (cpu_seconds(balancer.pid) - cpu) / wait
    found["memory_mb"] = memory_mb(balancer.pid)
    return found


def measure_changes(cluster, port):
    client, comes, goes = Client(port), [], []
    client.wait_for("further.example", 404)
    for _ in range(CHANGES):
        cluster.route("further", "s1")
        begun = time.monotonic()
        comes.append(1000 * max(0, client.wait_for("further.example", 200) - begun))
        cluster.delete(f"{SHOP}/httproutes", "further")
        begun = time.monotonic()
        goes.append(1000 * max(0, client.wait_for("further.example", 404) - begun))
    return {"in_effect_ms": spread(comes), "out_of_effect_ms": spread(goes)}


def measure_leaving(cluster, port):
    steady, client = Steady(port, "r0.example", RATE), Client(port)
    for number in range(1, ROUTES):
        cluster.delete(f"{SHOP}/httproutes", f"r{number}")
    client.wait_for(f"r{ROUTES - 1}.example", 404, limit=600)
    return steady.end()


def measure_failing(cluster, port, pods):
    cluster.service("four", [(["10.201.255.1"], port) for port in pods.ports[:4]])
    cluster.route("four", "four")
    Client(port).wait_for("four.example", 200)
    steady = Steady(port, "four.example", FAILING_RATE)
    found = {}

    def share():
        before = list(pods.counts)
        time.sleep(PHASE)
        got = [now - was for now, was in zip(pods.counts[:4], before[:4])]
        return got[0] / max(1, sum(got))

    time.sleep(SEEN)
    usual = share()
    for name, fails in (("half", 0.5), ("all", 1.0)):
        pods.fails[0] = fails
        time.sleep(SEEN)
        failing = share()
        pods.fails[0] = 0.0
        time.sleep(SEEN)
        well = share()
        found[name] = {"share_while_failing": failing / usual, "share_afterwards": well / usual}
    steady.end()
    return {"usual_share": usual, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/evenkeel")
    parser.add_argument("--programs", required=True, help="folder that scripts/kubernetes prints")
    parser.add_argument("--json", default=os.path.join(os.path.dirname(__file__), "results/gateway.json"))
    args = parser.parse_args()
    with contextlib.ExitStack() as last:
        folder = last.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-gateway-"))
        local = ["ip", "route", "replace", "local", NETWORK, "dev", "lo"]
        if subprocess.run(local).returncode != 0:
            raise SystemExit("gateway: skipped: making addresses local needs root")
        last.callback(lambda: subprocess.run(["ip", "route", "del", *local[3:]], check=False))
        pods = Pods(5)
        cluster = Cluster(args.programs, folder, last)
        crds = [name for name in os.listdir(args.programs) if name.startswith("gateway-api-")]
        for path in sorted(os.listdir(f"{args.programs}/{crds[0]}")):
            with open(f"{args.programs}/{crds[0]}/{path}") as file:
                cluster.ask("POST", CRDS, file.read(), "application/yaml")
        cluster.wait("the Gateway API", lambda: cluster.ask("GET", f"{SHOP}/httproutes")[0] == 200)
        cluster.create("/api/v1/namespaces", "Namespace", "shop")
        cluster.create(f"{GROUP}/gatewayclasses", "GatewayClass", "edge", spec={"controllerName": "example.org/edge"})
        port = free_port()
        listener = {"name": "http", "port": port, "protocol": "HTTP"}
        cluster.create(f"{SHOP}/gateways", "Gateway", "front", spec={"gatewayClassName": "edge", "listeners": [listener]})
        with open(f"{folder}/kubeconfig", "w") as file:
            file.write(cluster.kubeconfig())
        with open(f"{folder}/evenkeel.toml", "w") as file:
            file.write(
                '[admin]\nlisten = "127.0.0.1:0"\n[kubernetes]\nkubeconfig = "kubeconfig"\n[kubernetes.gateway]\n'
                'controller = "example.org/edge"\nlisten = "127.0.0.1"\npublish = "192.0.2.10"\n'
            )
        with open(f"{folder}/evenkeel.log", "w") as log:
            balancer = subprocess.Popen([args.binary, "run", f"{folder}/evenkeel.toml"], stdout=log, stderr=log)
        last.callback(balancer.wait)
        last.callback(balancer.kill)
        found = {"failing": measure_failing(cluster, port, pods)}
        print(json.dumps(found["failing"], indent=1), flush=True)
        for name, measure in (
            ("scale", lambda: measure_scale(cluster, port, balancer, pods)),
            ("changes", lambda: measure_changes(cluster, port)),
            ("leaving", lambda: measure_leaving(cluster, port)),
        ):
            found[name] = measure()
            print(json.dumps({name: found[name]}, indent=1), flush=True)
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
        print(f"Written to {args.json}.")


if __name__ == "__main__":
    main()
