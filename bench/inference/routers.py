"""Balancers and routers in front of engines: each is a process of its own, with the configuration that its users write."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

MODEL = "mock"
CACHE = os.path.join("bench", ".cache", "inference")
# Packages of PyPI, each in a virtual environment of its own: some have programs of the same name.
PACKAGES = {
    "smg": ["smg==1.13.0"],
    "vllm-router": ["vllm-router==0.1.17"],
    "sglang-router": ["sglang-router==0.3.2"],
    "litellm": ["litellm[proxy]==1.108.7"],
}
DYNAMO = ["ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1"]
DYNAMO_NEEDS = "aiohttp kubernetes msgspec prometheus-client pyzmq redis transformers zstandard pydantic uvloop".split()


# Ports that were given away: the system may name a free port twice before somebody listens there.
GIVEN = set()


def free_port():
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        if port not in GIVEN:
            GIVEN.add(port)
            return port


def install(name, packages, log):
    """Installs packages in a virtual environment, unless they are there; false if they cannot be had."""
    folder = os.path.join(CACHE, name)
    mark = os.path.join(folder, "packages")
    wanted = "\n".join(" ".join(each) for each in packages)
    if os.path.exists(mark) and open(mark).read() == wanted:
        return True
    print(f"installing {name} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    commands = [[sys.executable, "-m", "venv", folder]]
    pip = [os.path.join(folder, "bin", "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    commands += [pip + each for each in packages]
    with open(log, "ab") as file:
        for command in commands:
            if subprocess.run(command, stdout=file, stderr=file).returncode:
                print(f"SKIPPED: {name}: pip could not install {' '.join(command[6:]) or folder} (see {log})", flush=True)
                return False
    with open(mark, "w") as file:
        file.write(wanted)
    return True


def cpu_seconds(pid):
    """CPU time of a process and its children, in seconds."""
    found = 0.0
    for one in [pid, *children(pid)]:
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/schedstat") as file:
                    found += int(file.read().split()[0]) / 1e9
        except OSError:
            pass
    return found


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in file.read().split():
                    found += [int(child), *children(int(child))]
    except OSError:
        pass
    return found


def version_of(command):
    """Last word with a digit of what a program says about its version."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = [word for word in (told.stdout + told.stderr).split("\n")[0].split() if any(letter.isdigit() for letter in word)]
    return words[0].removeprefix("nginx/") if words else None


def is_answered(url):
    """True if a small request is answered."""
    body = b'{"model":"mock","messages":[{"role":"user","content":"ready?"}],"max_tokens":1}'
    head = {"Content-Type": "application/json", "Authorization": "Bearer none"}
    try:
        ask = urllib.request.Request(f"{url}/v1/chat/completions", body, head)
        return urllib.request.urlopen(ask, timeout=5).status == 200
    except OSError:
        return False


class Router:
    """A process in front of engines. Subclasses tell the command, and write its configuration."""

    name = version = None
    environment = {}

    def __init__(self, folder, ports, log):
        self.folder, self.ports, self.port = folder, ports, free_port()
        self.log = open(log, "ab")
        self.process = subprocess.Popen(
            self.command(), stdout=self.log, stderr=self.log, start_new_session=True, env=os.environ | self.environment
        )

    def path(self, name):
        return os.path.join(self.folder, f"{self.port}-{name}")

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    @classmethod
    def prepare(cls, log):
        """Installs the program; false if it cannot be had."""
        return True

    def is_ready(self):
        return is_answered(self.url)

    def wait_until_ready(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                return False
            # Every engine has to be known: engines are asked in turns.
            if self.is_ready() and all(self.is_ready() for _ in range(3)):
                return True
            time.sleep(0.1)
        return False

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def end(self):
        """Ends the process, and those that it has started."""
        for number, seconds in [(signal.SIGTERM, 3), (signal.SIGKILL, 5)]:
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(seconds)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                pass
        self.log.close()


class Evenkeel(Router):
    name, strategy, more = "evenkeel", "inference", ""
    program = "target/dist/evenkeel"

    def command(self):
        members = ", ".join(f'"127.0.0.1:{port}"' for port in self.ports)
        text = f'[admin]\nlisten = "127.0.0.1:{free_port()}"\n[rule.models]\nlisten = "127.0.0.1:{self.port}"\nmembers = [{members}]\n{self.strategy_line()}{self.more}'
        return [self.program, "run", self.write("evenkeel.toml", text)]

    def strategy_line(self):
        return f'strategy = "{self.strategy}"\n'


class EvenkeelMetrics(Evenkeel):
    name = "evenkeel, metrics"
    more = '\n[rule.models.prometheus]\npreset = "vllm"\ninterval = "1s"\n'


class EvenkeelAdaptive(Evenkeel):
    name, strategy = "evenkeel, adaptive", "adaptive"


class Nginx(Router):
    name = "nginx"

    def command(self):
        servers = "".join(f"server 127.0.0.1:{port}; " for port in self.ports)
        text = (
            f"daemon off; worker_processes 1; pid {self.path('pid')}; error_log stderr; events {{}}\n"
            f"http {{ access_log off; client_max_body_size 0; client_body_buffer_size 1m; client_body_temp_path {self.path('body')};\n"
            f"proxy_temp_path {self.path('proxy')}; fastcgi_temp_path {self.path('f')}; uwsgi_temp_path {self.path('u')}; scgi_temp_path {self.path('s')};\n"
            f"upstream models {{ least_conn; {servers} }}\n"
            f"server {{ listen 127.0.0.1:{self.port}; location / {{ proxy_pass http://models; proxy_buffering off; proxy_http_version 1.1; "
            f'proxy_set_header Connection ""; proxy_read_timeout 600s; }} }} }}\n'
        )
        return ["/usr/sbin/nginx", "-c", os.path.abspath(self.write("nginx.conf", text))]

    @classmethod
    def prepare(cls, log):
        cls.version = version_of(["/usr/sbin/nginx", "-v"])
        return cls.version is not None


class HaProxy(Router):
    name = "haproxy"

    def command(self):
        servers = "".join(f"  server s{index} 127.0.0.1:{port} check\n" for index, port in enumerate(self.ports))
        text = (
            "global\n  nbthread 1\ndefaults\n  mode http\n  timeout client 600s\n  timeout server 600s\n  timeout connect 5s\n"
            f"listen models\n  bind 127.0.0.1:{self.port}\n  balance leastconn\n{servers}"
        )
        return ["/usr/sbin/haproxy", "-db", "-f", self.write("haproxy.cfg", text)]

    @classmethod
    def prepare(cls, log):
        cls.version = version_of(["/usr/sbin/haproxy", "-v"])
        return cls.version is not None


class FromPyPi(Router):
    @classmethod
    def prepare(cls, log):
        if not install(cls.name, [PACKAGES[cls.name]], log):
            return False
        cls.version = PACKAGES[cls.name][0].split("==")[1]
        return True

    def program(self, name):
        return os.path.join(CACHE, self.name, "bin", name)

    def engines(self):
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def options(self):
        """Options that smg, and the programs that it comes from, have in common."""
        return ["--host", "127.0.0.1", "--port", str(self.port), "--policy", "cache_aware", "--prometheus-port", str(free_port()), "--worker-urls", *self.engines()]


class LiteLlm(FromPyPi):
    name = "litellm"
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "NO_DOCS": "True", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}

    def command(self):
        text = "model_list:\n"
        for url in self.engines():
            text += f"- model_name: {MODEL}\n  litellm_params: {{model: openai/{MODEL}, api_base: '{url}/v1', api_key: none}}\n"
        text += "router_settings: {routing_strategy: least-busy, num_retries: 0}\nlitellm_settings: {telemetry: false}\n"
        return [self.program("litellm"), "--config", self.write("litellm.yaml", text), "--host", "127.0.0.1", "--port", str(self.port)]


class Smg(FromPyPi):
    name = "smg"

    def command(self):
        return [self.program("smg"), "launch", *self.options()]


class VllmRouter(FromPyPi):
    name = "vllm-router"

    def command(self):
        return [self.program("vllm-router"), *self.options()]


class SglangRouter(FromPyPi):
    name = "sglang-router"

    def command(self):
        return [self.program("python"), "-m", "sglang_router.launch_router", *self.options()]


ROUTERS = [Evenkeel, EvenkeelMetrics, EvenkeelAdaptive, Nginx, HaProxy, LiteLlm, Smg, VllmRouter, SglangRouter]
