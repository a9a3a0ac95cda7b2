"""A server of gRPC whose only method answers with its name."""
import sys
from concurrent import futures

import grpc

name = sys.argv[1].encode()
handlers = grpc.method_handlers_generic_handler(
    "test.Test", {"Who": grpc.unary_unary_rpc_method_handler(lambda request, context: name)}
)
server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
server.add_generic_rpc_handlers([handlers])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
