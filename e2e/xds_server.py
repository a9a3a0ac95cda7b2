"""A server of gRPC whose only method answers with its name, and says with each answer how much it is used (ORCA).

Its arguments are the name and the utilisation. It says the port that it listens at.
"""
import struct
import sys
from concurrent import futures

import grpc

name = sys.argv[1].encode()
# Fields 1 and 6 of an OrcaLoadReport, both doubles: cpu_utilization, and requests per second.
report = b"\x09" + struct.pack("<d", float(sys.argv[2])) + b"\x31" + struct.pack("<d", 100.0)


def who(request, context):
    context.set_trailing_metadata((("endpoint-load-metrics-bin", report),))
    return name


handlers = grpc.method_handlers_generic_handler(
    "test.Test", {"Who": grpc.unary_unary_rpc_method_handler(who)}
)
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
server.add_generic_rpc_handlers([handlers])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
