"""A custom strategy: the cheapest server that has fewer than eight requests."""

import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PRICES = {"web-1": 3, "web-2": 1, "web-3": 2}


class Chooser(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Connections stay open.
    disable_nagle_algorithm = True  # Answers leave at once.

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        order = lambda c: (c["in_flight"] >= 8, PRICES.get(c["name"], 9), c["in_flight"])
        answer = json.dumps({"member": min(question["candidates"], key=order)["member"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass  # No line for each question.


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Chooser)
print("chooser at port", server.server_port, flush=True)
server.serve_forever()
