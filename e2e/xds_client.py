"""A client of gRPC that finds its servers by xDS.

Its argument is the target. For each line on standard input, a number, it makes so many calls, and says as JSON how
many of them each server has answered; calls that have failed stand under their status.
"""
import collections
import json
import sys

import grpc

channel = grpc.insecure_channel(sys.argv[1])
who = channel.unary_unary("/test.Test/Who")
for line in sys.stdin:
    counts = collections.Counter()
    for _ in range(int(line)):
        try:
            counts[who(b"", timeout=10, wait_for_ready=True).decode()] += 1
        except grpc.RpcError as error:
            counts[error.code().name + ": " + error.details()] += 1
            # Shown if a test fails.
            print(error.debug_error_string(), file=sys.stderr, flush=True)
    print(json.dumps(counts), flush=True)
