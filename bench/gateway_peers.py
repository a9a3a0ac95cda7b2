"""Gateways that `bench/gateway.py` measures in turns: Evenkeel and its peers.

Evenkeel and Traefik follow the Gateway API at a kube-apiserver of their own. Caddy gets its routes by its admin API, and Envoy by
xDS from files. nginx and HAProxy have their usual files, for the part with a pod that fails. Each has the configuration that its
manual shows, with one change: no retries.
"""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time

from console import free_port


class NotReady(Exception):
    """A program or a route is not ready within its limit."""


def wait_until(what, holds, limit=120):
    """Waits until a condition holds.

    Raises NotReady after the limit.
    """
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if holds():
                return
        time.sleep(0.05)
    raise NotReady(f"{what} is not ready after {limit} s")


class Gateway:
    """A balancer at one port. `services` has the addresses of each service as pairs of address and port; `routes` has the service of
    each route NAME, whose host is NAME.example."""

    # True if a route can come and go while the balancer runs.
    takes_routes = True
    # False for a variant that differs from another balancer only while a pod fails.
    measures_scale = True
    # True if all routes are given to the balancer at once, because one by one each would make all others anew.
    takes_all_at_once = False

    def __init__(self, program):
        self.program, self.port, self.process = program, None, None

    def __enter__(self):
        self.last = contextlib.ExitStack()
        self.folder = self.last.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-gateway-"))
        self.port = free_port()
        return self

    def __exit__(self, *_):
        self.last.close()

    def run(self, *command):
        with open(f"{self.folder}/program.log", "w") as log:
            env = {**os.environ, "HOME": self.folder}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=self.folder)
        self.last.callback(self.process.wait)
        self.last.callback(self.process.terminate)

    def write(self, name, text):
        """Writes a file of the balancer in one step."""
        with open(f"{self.folder}/{name}.new", "w") as file:
            file.write(text)
        os.rename(f"{self.folder}/{name}.new", f"{self.folder}/{name}")

    def show_log(self):
        """Returns the end of what the balancer has written."""
        with contextlib.suppress(OSError), open(f"{self.folder}/program.log", errors="replace") as log:
            return log.read()[-800:]
        return ""


class OfCluster(Gateway):
    """A controller of the Gateway API, with a cluster of its own."""

    controller = "example.org/edge"

    def __init__(self, program, start_cluster):
        super().__init__(program)
        self.start_cluster = start_cluster

    def begin(self, services, routes):
        self.cluster = self.start_cluster(self.folder, self.last)
        self.cluster.gateway(self.controller, self.port)
        for name, endpoints in services.items():
            self.cluster.service(name, endpoints)
        for name, service in routes.items():
            self.cluster.route(name, service)
        self.follow()

    def add(self, name, service):
        """Adds a route; returns the moment from which it could be in effect."""
        self.cluster.route(name, service)
        return time.monotonic()

    def remove(self, name):
        self.cluster.delete_route(name)
        return time.monotonic()


class Evenkeel(OfCluster):
    """Evenkeel with [kubernetes.gateway]."""

    def follow(self):
        self.write("kubeconfig", self.cluster.kubeconfig())
        self.write(
            "evenkeel.toml",
            '[admin]\nlisten = "127.0.0.1:0"\n[kubernetes]\nkubeconfig = "kubeconfig"\n[kubernetes.gateway]\n'
            f'controller = "{self.controller}"\nlisten = "127.0.0.1"\npublish = "192.0.2.10"\n',
        )
        self.run(self.program, "run", f"{self.folder}/evenkeel.toml")


class Traefik(OfCluster):
    """Traefik with its provider for the Gateway API."""

    controller = "traefik.io/gateway-controller"

    def follow(self):
        self.run(
            self.program,
            f"--entrypoints.web.address=127.0.0.1:{self.port}",
            "--providers.kubernetesgateway=true",
            f"--providers.kubernetesgateway.endpoint=https://127.0.0.1:{self.cluster.port}",
            "--providers.kubernetesgateway.token=secret",
            f"--providers.kubernetesgateway.certauthfilepath={self.cluster.folder}/certificates/apiserver.crt",
            "--providers.kubernetesgateway.statusaddress.ip=192.0.2.10",
            "--global.checknewversion=false",
            "--global.sendanonymoususage=false",
        )


class Caddy(Gateway):
    """Caddy, whose routes come and go by its admin API."""

    takes_all_at_once = True
    health_checks = None

    def begin(self, services, routes):
        self.services, self.admin = services, free_port()
        self.write("caddy.json", json.dumps(self.configure(routes)))
        self.run(self.program, "run", "--config", f"{self.folder}/caddy.json")
        wait_until("Caddy", lambda: self.ask("GET", "/config/admin") == 200)

    def configure(self, routes):
        # The last route answers what no other one does.
        all_routes = [self.make_route(name, service) for name, service in routes.items()]
        all_routes.append({"handle": [{"handler": "static_response", "status_code": 404}]})
        front = {"listen": [f"127.0.0.1:{self.port}"], "routes": all_routes, "automatic_https": {"disable": True}}
        admin = {"listen": f"127.0.0.1:{self.admin}", "config": {"persist": False}}
        return {"admin": admin, "apps": {"http": {"servers": {"front": front}}}}

    def make_route(self, name, service):
        dials = [{"dial": f"{address}:{port}"} for address, port in self.services[service]]
        proxy = {"handler": "reverse_proxy", "upstreams": dials}
        if self.health_checks:
            proxy["health_checks"] = self.health_checks
        return {"@id": name, "match": [{"host": [f"{name}.example"]}], "handle": [proxy], "terminal": True}

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=120)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            self.answer = answer.read()
            return answer.status
        finally:
            connection.close()

    def change(self, method, path, body=None):
        # The answer comes when the route is in effect: the time begins with the request.
        begun = time.monotonic()
        status = self.ask(method, path, body)
        if status != 200:
            raise NotReady(f"Caddy answers {status} to {method} {path}: {self.answer[:300]!r}")
        return begun

    def load(self, routes):
        return self.change("POST", "/load", self.configure(routes))

    def add(self, name, service):
        return self.change("PUT", "/config/apps/http/servers/front/routes/0", self.make_route(name, service))

    def remove(self, name):
        return self.change("DELETE", f"/id/{name}")


class CaddyPassive(Caddy):
    """Caddy with its passive health checks: a member rests ten seconds after a failure."""

    measures_scale = False
    health_checks = {"passive": {"fail_duration": "10s", "unhealthy_status": [5]}}


TYPES = "type.googleapis.com/envoy"


class Envoy(Gateway):
    """Envoy, with clusters and routes by xDS from files."""

    takes_all_at_once = True
    outlier_detection = None

    def begin(self, services, routes):
        self.routes = dict(routes)
        self.write_resources("clusters.json", [self.make_cluster(*service) for service in services.items()])
        self.write_routes()
        manager = f"{TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
        router = {"@type": f"{TYPES}.extensions.filters.http.router.v3.Router"}
        connections = {
            "@type": manager,
            "stat_prefix": "front",
            "rds": {"route_config_name": "front", "config_source": self.make_source("routes.json")},
            "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        }
        chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": connections}]}
        listener = {"name": "front", "address": self.make_address("127.0.0.1", self.port), "filter_chains": [chain]}
        bootstrap = {
            "node": {"id": "bench", "cluster": "bench"},
            "static_resources": {"listeners": [listener]},
            "dynamic_resources": {"cds_config": self.make_source("clusters.json")},
        }
        self.write("envoy.json", json.dumps(bootstrap))
        self.run(self.program, "-c", f"{self.folder}/envoy.json", "--use-dynamic-base-id", "--log-level", "warning")

    def make_source(self, name):
        return {"path_config_source": {"path": f"{self.folder}/{name}"}, "resource_api_version": "V3"}

    @staticmethod
    def make_address(address, port):
        return {"socket_address": {"address": address, "port_value": port}}

    def make_cluster(self, name, endpoints):
        members = [{"endpoint": {"address": self.make_address(*endpoint)}} for endpoint in endpoints]
        cluster = {
            "@type": f"{TYPES}.config.cluster.v3.Cluster",
            "name": name,
            "type": "STATIC",
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": members}]},
        }
        if self.outlier_detection is not None:
            cluster["outlier_detection"] = self.outlier_detection
        return cluster

    def write_resources(self, name, resources):
        self.version = f"{time.monotonic_ns()}"
        self.write(name, json.dumps({"version_info": self.version, "resources": resources}))

    def write_routes(self):
        hosts = [
            {
                "name": name,
                "domains": [f"{name}.example"],
                "routes": [{"match": {"prefix": "/"}, "route": {"cluster": service}}],
            }
            for name, service in self.routes.items()
        ]
        kind = f"{TYPES}.config.route.v3.RouteConfiguration"
        self.write_resources("routes.json", [{"@type": kind, "name": "front", "virtual_hosts": hosts}])
        return time.monotonic()

    def load(self, routes):
        self.routes = dict(routes)
        return self.write_routes()

    def add(self, name, service):
        self.routes[name] = service
        return self.write_routes()

    def remove(self, name):
        del self.routes[name]
        return self.write_routes()


class EnvoyOutliers(Envoy):
    """Envoy with its outlier detection, all of whose settings are defaults."""

    measures_scale = False
    outlier_detection = {}


class Haproxy(Gateway):
    """HAProxy with one backend."""

    takes_routes = False
    checks = ""

    def begin(self, services, routes):
        [(name, service)] = routes.items()
        servers = [
            f"    server m{number} {address}:{port}{self.checks}\n"
            for number, (address, port) in enumerate(services[service])
        ]
        self.write(
            "haproxy.cfg",
            "defaults\n    mode http\n    retries 0\n    timeout connect 5s\n    timeout client 50s\n    timeout server 50s\n"
            f"frontend front\n    bind 127.0.0.1:{self.port}\n    use_backend members if {{ hdr(host) {name}.example }}\n"
            f"backend members\n    balance roundrobin\n{''.join(servers)}",
        )
        self.run(self.program, "-db", "-f", f"{self.folder}/haproxy.cfg")


class HaproxyObserve(Haproxy):
    """HAProxy with checks of connections, and servers that are marked down for ten failures in a row."""

    checks = " check observe layer7 error-limit 10 on-error mark-down"


class Nginx(Gateway):
    """nginx with one upstream."""

    takes_routes = False

    def begin(self, services, routes):
        [(name, service)] = routes.items()
        servers = [f"    server {address}:{port};\n" for address, port in services[service]]
        self.write(
            "nginx.conf",
            f"daemon off;\npid {self.folder}/nginx.pid;\nerror_log {self.folder}/error.log;\nevents {{}}\nhttp {{\n"
            f"  access_log off;\n  upstream members {{\n{''.join(servers)}  }}\n  server {{\n    listen 127.0.0.1:{self.port};\n"
            f"    server_name {name}.example;\n"
            "    location / { proxy_pass http://members; proxy_next_upstream off; }\n  }\n}\n",
        )
        self.run(self.program, "-c", f"{self.folder}/nginx.conf", "-e", f"{self.folder}/error.log")


def list_gateways(evenkeel, folder, start_cluster):
    """Returns all balancers by name. Those whose program is not there are left out, with a message."""
    traefik, caddy, envoy = (f"{folder}/{name}" for name in ("traefik", "caddy", "envoy"))
    haproxy, nginx = (shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("haproxy", "nginx"))
    found = {"evenkeel": Evenkeel(os.path.abspath(evenkeel), start_cluster)}
    for name, program, make in (
        ("traefik", traefik, lambda path: Traefik(path, start_cluster)),
        ("caddy", caddy, Caddy),
        ("caddy-passive", caddy, CaddyPassive),
        ("envoy", envoy, Envoy),
        ("envoy-outliers", envoy, EnvoyOutliers),
        ("haproxy", haproxy, Haproxy),
        ("haproxy-observe", haproxy, HaproxyObserve),
        ("nginx", nginx, Nginx),
    ):
        if folder and program and os.access(program, os.X_OK):
            found[name] = make(program)
        else:
            print(f"gateway: {name} is left out: there is no program (bench/gateway-peers prepares Traefik, Caddy and Envoy)", flush=True)
    return found


def read_version(gateway):
    """Returns what a program says of its version."""
    for word in ("version", "--version", "-v"):
        told = subprocess.run([gateway.program, word], capture_output=True, text=True, check=False)
        lines = [line.strip() for line in (told.stdout + told.stderr).splitlines() if any(map(str.isdigit, line))]
        if told.returncode == 0 and lines:
            return lines[0].removeprefix(gateway.program).strip()
    return ""
