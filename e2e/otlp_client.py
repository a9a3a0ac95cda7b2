"""A client that is traced by the SDK of OpenTelemetry: for each line with an address and a path it sends a
request within a span of its own, and prints status, trace and span.
"""

import http.client
import sys

from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

tracer = TracerProvider().get_tracer("client")
for line in sys.stdin:
    address, path = line.split()
    host, port = address.rsplit(":", 1)
    with tracer.start_as_current_span("ask", kind=SpanKind.CLIENT) as span:
        headers = {"User-Agent": "otlp-client"}
        inject(headers)
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.read()
        context = span.get_span_context()
        print(response.status, f"{context.trace_id:032x}", f"{context.span_id:016x}", flush=True)
