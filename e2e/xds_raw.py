"""A client of xDS that says what it is told: over gRPC, with messages made by hand.

Its arguments are an address and a method of the aggregated discovery service. Lines on standard input:

    want NODE TYPE NAME …    asks for resources; no name is all
    next                     waits for an answer, and says it as JSON: version, nonce, names, length
    none                     waits for half a second, and says whether an answer came
    ack TYPE NAME …          accepts the last answer
    nack TYPE REASON         refuses the last answer, with the same names as before
    garbage                  sends bytes that are no message
    end                      waits for the end of the stream, and says its status
"""
import json
import queue
import sys
import threading

import grpc

TYPES = {
    "cluster": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    "endpoints": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    "listener": "type.googleapis.com/envoy.config.listener.v3.Listener",
}


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(message):
    """The fields of a message: number and bytes, or number."""
    at = 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = read()
        if tag & 7 == 0:
            yield tag >> 3, read()
        else:
            length = read()
            yield tag >> 3, message[at : at + length]
            at += length


channel = grpc.insecure_channel(sys.argv[1])
method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/" + sys.argv[2]
requests, answers = queue.Queue(), queue.Queue()
call = channel.stream_stream(method)(iter(requests.get, None))


def listen():
    try:
        for answer in call:
            answers.put(answer)
        answers.put("OK")
    except grpc.RpcError as error:
        answers.put(error.code().name + ": " + error.details())


threading.Thread(target=listen, daemon=True).start()
version = nonce = ""
wanted = []


def request(kind, names, node=None, error=None):
    message = field(1, version)
    if node:
        message += field(2, field(1, node) + field(6, "raw"))
    for name in names:
        message += field(3, name)
    message += field(4, TYPES[kind]) + field(5, nonce)
    if error:
        message += field(6, b"\x08\x03" + field(2, error))
    requests.put(message)


for line in sys.stdin:
    words = line.split()
    if words[0] == "want":
        node, kind, wanted = words[1], words[2], words[3:]
        version = nonce = ""
        request(kind, wanted, node=node)
    elif words[0] == "next":
        answer = answers.get(timeout=30)
        names, length = [], len(answer)
        for number, value in fields(answer):
            if number == 1:
                version = value.decode()
            elif number == 2:
                resource = dict(fields(value))[2]
                names.append(next(value for number, value in fields(resource) if number == 1).decode())
            elif number == 5:
                nonce = value.decode()
        print(json.dumps({"version": version, "nonce": nonce, "names": names, "length": length}), flush=True)
    elif words[0] == "none":
        try:
            answers.get(timeout=0.5)
            print("some", flush=True)
        except queue.Empty:
            print("none", flush=True)
    elif words[0] == "ack":
        wanted = words[2:]
        request(words[1], wanted)
    elif words[0] == "nack":
        request(words[1], wanted, error=" ".join(words[2:]))
    elif words[0] == "garbage":
        requests.put(b"\xff\xff\xff")
    elif words[0] == "end":
        print(answers.get(timeout=30), flush=True)
