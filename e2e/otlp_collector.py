"""A collector of traces: decodes what is sent by OTLP over HTTP with the messages of the package
opentelemetry-proto, and prints each span as a line of JSON.

Prints its port first. `fail N` on standard input has it answer the next N requests with 503.
"""

import http.server
import json
import sys
import threading

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

failing = 0
lock = threading.Lock()


def attributes(message):
    """Names and values, each of its own type."""
    values = {}
    for entry in message:
        kind = entry.value.WhichOneof("value")
        values[entry.key] = getattr(entry.value, kind)
    return values


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        global failing
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with lock:
            if failing > 0:
                failing -= 1
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        with lock:
            for of_resource in request.resource_spans:
                for of_scope in of_resource.scope_spans:
                    for span in of_scope.spans:
                        tell(self, of_resource.resource, of_scope.scope, span)

    def log_message(self, *_):
        pass


def tell(handler, resource, scope, span):
    known = MessageToDict(span)
    print(
        json.dumps(
            {
                "path": handler.path,
                "type": handler.headers["Content-Type"],
                "login": handler.headers["Authorization"],
                "resource": attributes(resource.attributes),
                "scope": scope.name,
                "name": span.name,
                "kind": known.get("kind"),
                "trace": span.trace_id.hex(),
                "span": span.span_id.hex(),
                "parent": span.parent_span_id.hex(),
                "state": span.trace_state,
                "flags": span.flags,
                "status": known.get("status", {}).get("code"),
                "start": span.start_time_unix_nano,
                "end": span.end_time_unix_nano,
                "attributes": attributes(span.attributes),
            }
        ),
        flush=True,
    )


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
for line in sys.stdin:
    words = line.split()
    if words[:1] == ["fail"]:
        with lock:
            failing = int(words[1])
        print("failing", flush=True)
