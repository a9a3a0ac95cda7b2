#!/usr/bin/env python3
"""What the access log and traces cost: CPU time of the balancer for each request.

Balancers with none of them, with the access log, with traces of one request in a hundred, and with both take turns behind the
same load. A second one with none of them shows what is noise. Ratios are of the same round; the median and the quartiles
of them are printed, and written to bench/results/telemetry.json.
"""

import contextlib
import http.server
import random
import tempfile
import threading

from console import ROUNDS, SECONDS, Balancer, answered, cpu_seconds, free_port, keep, servers, spread, wait_for


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is sent by OTLP, and counts it."""

    protocol_version = "HTTP/1.1"
    received = 0

    def do_POST(self):
        Collector.received += len(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def measure(balancer, port):
    """CPU time for each request, in seconds."""
    before = cpu_seconds(balancer.process.pid)
    count = answered(port)
    return (cpu_seconds(balancer.process.pid) - before) / count


def main():
    with contextlib.ExitStack() as last:
        folder = last.enter_context(tempfile.TemporaryDirectory())
        collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
        last.callback(collector.shutdown)
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        nginx, members = servers(folder)
        last.callback(nginx.terminate)
        names = ", ".join(f'"127.0.0.1:{member}"' for member in members)
        # Not where configurations are: the balancer watches that folder.
        logs = last.enter_context(tempfile.TemporaryDirectory())
        log = f'[access_log]\noutput = "{logs}/%s.log"\n'
        traces = f'[tracing]\nendpoint = "http://127.0.0.1:{collector.server_address[1]}"\nsample = 0.01\n'
        arms = {
            "none": "",
            "none again": "",
            "access log": log % "log",
            "traces of 1 %": traces,
            "both": log % "both" + traces,
        }
        running = {}
        for name, text in arms.items():
            port = free_port()
            balancer = Balancer(folder, f'{text}[rule.web]\nlisten = "127.0.0.1:{port}"\nmembers = [{names}]\n')
            last.callback(balancer.end)
            wait_for(port)
            measure(balancer, port)
            running[name] = (balancer, port)
        rounds = []
        for number in range(ROUNDS):
            order = list(running)
            random.Random(number).shuffle(order)
            rounds.append({name: measure(*running[name]) for name in order})
        if not Collector.received:
            raise SystemExit("the collector has got nothing")
        found = {"seconds": SECONDS, "cpu_per_request_us": spread([one["none"] * 1e6 for one in rounds])}
        for name in list(arms)[1:]:
            found[f"{name} / none"] = spread([one[name] / one["none"] for one in rounds])
    keep(found, "telemetry")


if __name__ == "__main__":
    main()
