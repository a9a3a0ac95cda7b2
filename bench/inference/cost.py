"""CPU time of a balancer for each request to an engine, beside the same rule with another strategy.

The member is nginx with an answer that is always the same. `chat` is a small request of a chat; `220 KB` is a prompt of 220 KB that no
member knows. Balancers take turns; clients keep their connections.
"""

import os
import random
import socket
import statistics
import threading
import time

import routers

ANSWER = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"mock","choices":[{"index":0,"message":{"role":"assistant",'
    '"content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22,'
    '"prompt_tokens_details":{"cached_tokens":0}}}'
)
CLIENTS = 4
# Requests of a turn, and of the warm-up before the first one.
KINDS = {"chat": (6000, 400), "220 KB": (1500, 220_000)}
LIMITS = {"chat": ("times a plain rule's CPU time", 1.15), "220 KB": ("requests per second of a core", 2000)}
# Microseconds that a prompt of 220 KB may take beyond a plain rule's.
ADDED = 100


class CannedMember(routers.Nginx):
    name = "member"

    def command(self):
        text = (
            f"daemon off; worker_processes 1; pid {self.path('pid')}; error_log stderr; events {{}}\n"
            f"http {{ access_log off; keepalive_requests 1000000; client_max_body_size 0; client_body_buffer_size 1m; client_body_temp_path {self.path('body')};\n"
            f"proxy_temp_path {self.path('proxy')}; fastcgi_temp_path {self.path('f')}; uwsgi_temp_path {self.path('u')}; scgi_temp_path {self.path('s')};\n"
            f"default_type application/json; server {{ listen 127.0.0.1:{self.port}; location / {{ return 200 '{ANSWER}'; }} }} }}\n"
        )
        return ["/usr/sbin/nginx", "-c", os.path.abspath(self.write("member.conf", text))]


class Plain(routers.Evenkeel):
    name, strategy = "plain rule", "adaptive"


class Balancers:
    """A rule with the strategy `inference`, and a plain rule, in front of the same members."""

    ROUTERS = [routers.Evenkeel, Plain]


def write_prompt(size):
    draw = random.Random(size)
    return "".join(f"{draw.getrandbits(28):07x} " for _ in range(size // 8)).encode()


def connect(port):
    one = socket.create_connection(("127.0.0.1", port))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def ask(port, count, prompt, first, failed):
    """Sends requests over one connection, one after the other; each prompt begins with a number of its own. The member answers without reading
    the body, so a balancer may have the whole answer before it has sent the body on, and close the connection then, as it says."""
    one = connect(port)
    try:
        for index in range(count):
            body = b'{"model":"mock","messages":[{"role":"user","content":"%012d %s"}],"max_tokens":2}' % (first + index, prompt)
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: models\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            one.sendall(head + body)
            seen = b""
            while b"\r\n\r\n" not in seen or len(seen.split(b"\r\n\r\n", 1)[1]) < len(ANSWER):
                data = one.recv(1 << 16)
                if not data:
                    failed.append(index)
                    return
                seen += data
            if not seen.startswith(b"HTTP/1.1 200"):
                failed.append(index)
            if b"\r\nconnection: close\r\n" in seen.lower():
                one.close()
                one = connect(port)
    except OSError as error:
        failed.append(error)
    finally:
        one.close()


def run_turn(process, kind, first):
    """Microseconds of the balancer's CPU time for each request."""
    count, size = KINDS[kind]
    prompt, failed = write_prompt(size), []
    before = routers.cpu_seconds(process.process.pid)
    threads = [
        threading.Thread(target=ask, args=[process.port, count // CLIENTS, prompt, first + index * count, failed]) for index in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"cost, {kind}: {process.name}: {len(failed)} clients or requests failed")
    time.sleep(0.05)
    return 1e6 * (routers.cpu_seconds(process.process.pid) - before) / (count // CLIENTS * CLIENTS)


def measure(folder, rounds):
    """A row for each kind of request: microseconds by balancer, and ratios within rounds."""
    members, processes, rows = [], [], []
    try:
        members = [CannedMember(folder, [], os.path.join(folder, "member.log")) for _ in range(2)]
        for member in members:
            if not member.wait_until_ready(20):
                raise SystemExit("cost: nginx did not start")
        for router in Balancers.ROUTERS:
            processes.append(router(folder, [member.port for member in members], os.path.join(folder, f"{router.name}.log")))
            if not processes[-1].wait_until_ready(20):
                raise SystemExit(f"cost: {router.name} did not start")
        for kind in KINDS:
            micros = {process.name: [] for process in processes}
            for turn in range(-1, rounds):
                for process in processes[:: 1 if turn % 2 else -1]:
                    told = run_turn(process, kind, (turn + 2) * 10_000_000)
                    if turn >= 0:
                        micros[process.name].append(round(told, 2))
            ours, plain = (micros[router.name] for router in Balancers.ROUTERS)
            ratios = sorted(a / b for a, b in zip(ours, plain))
            what, limit = LIMITS[kind]
            reached = 1e6 / statistics.median(ours) if kind == "220 KB" else statistics.median(ratios)
            is_reached = reached >= limit if kind == "220 KB" else reached <= limit
            row = {"request": kind, "micros": micros, "ratio": round(statistics.median(ratios), 4), "ratios": [round(one, 4) for one in ratios]}
            row |= {"what": what, "limit": limit, "figure": round(reached, 3), "reached": is_reached}
            rows.append(row)
            if kind == "220 KB":
                added = statistics.median(a - b for a, b in zip(ours, plain))
                more = {"what": "us more than a plain rule", "limit": ADDED, "figure": round(added, 1), "reached": added <= ADDED}
                rows.append({**row, **more})
        for row in rows:
            reached = "pass" if row["reached"] else "MISS"
            print(f"cost, {row['request']}: {row['figure']} {row['what']} (limit {row['limit']}): {reached}", flush=True)
        return rows
    finally:
        for each in [*processes, *members]:
            each.end()
