#!/usr/bin/env python3
"""An agent that speaks docs/reporting-protocol.md, written from that page alone.

It measures nothing: what it reports comes from standard input, a command a line, and what
happens goes to standard output, a line each. So it is a second implementation to test a
broker with, and a first look at how to write one.

  agent.py --broker HOST:PORT --key ID:HEX --location NAME --agent NAME \\
           [--server GROUP,HOST,PORT]...

  load ID=VALUE ...     report these loads, now and at every interval
  state STATE ...       report these states of the servers: 0 up, 1 drain, 2 down
  stop                  sign off, and end
"""

import argparse
import hmac
import os
import random
import select
import socket
import struct
import sys
import time

MAGIC, VERSION = b"EvKl", 1
REGISTRATION, UPDATE, STOP = 0x01, 0x02, 0x03
CHALLENGE, ACKNOWLEDGEMENT, QUERY = 0x81, 0x82, 0x83
STOP_ACKNOWLEDGEMENT, REGISTER_AGAIN = 0x84, 0x85
HEADER = struct.Struct(">4sBBHQQQ")
CONTROL = struct.Struct(">QIBHBB")
NO_COOKIE = bytes(24)


def text(value):
    data = value.encode()
    return bytes([len(data)]) + data


class Agent:
    def __init__(self, options):
        key_id, secret = options.key.split(":")
        self.key_id, self.secret = int(key_id), bytes.fromhex(secret)
        self.location, self.name = options.location, options.agent
        self.servers = [server.split(",") for server in options.server]
        self.states = [0] * len(self.servers)
        self.alerts = [None] * len(self.servers)
        self.loads, self.measurement, self.measured_at = {}, 0, time.monotonic()
        self.random = random.SystemRandom()
        self.interval, self.silence, self.lease = 1.0, 30.0, 3
        host, port = options.broker.rsplit(":", 1)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, int(port)))
        self.register()

    def say(self, *words):
        print(*words, flush=True)

    def register(self):
        self.state, self.cookie = "registering", NO_COOKIE
        self.nonce, self.sequence = self.random.getrandbits(64), 0
        self.identifier, self.heard, self.token = 0, 0, 0
        self.tries, self.retry_at, self.hurried = 0, 0.0, False

    def send(self, kind, body=b""):
        self.sequence += 1
        header = HEADER.pack(MAGIC, VERSION, kind, self.key_id, self.nonce,
                             self.identifier, self.sequence)
        code = hmac.digest(self.secret, header + body, "sha256")[:16]
        try:
            self.socket.send(header + body + code)
        except ConnectionError:
            pass  # Nobody is there at the moment.

    def retry_later(self):
        wait = min(0.5 * 2 ** self.tries, 10.0)
        self.tries += 1
        self.retry_at = time.monotonic() + wait * self.random.uniform(0.75, 1.25)

    def send_registration(self):
        body = self.cookie + text(self.location) + text(self.name)
        body += bytes([len(self.servers)])
        for group, host, port in self.servers:
            body += text(group) + text(host) + struct.pack(">H", int(port)) + b"\xff" * 4
        self.send(REGISTRATION, body)
        self.retry_later()

    def send_update(self):
        age = int((time.monotonic() - self.measured_at) * 1000)
        body = struct.pack(">QQII", self.token, self.heard, self.measurement, age)
        body += bytes([len(self.states)]) + bytes(self.states) + bytes([len(self.loads)])
        for load_id, value in self.loads.items():
            body += struct.pack(">If", load_id, value)
        self.send(UPDATE, body)

    def measure(self):
        self.measurement, self.measured_at = self.measurement + 1, time.monotonic()
        if self.state == "registered":
            self.send_update()

    def command(self, line):
        words = line.split()
        if words[0] == "load":
            pairs = (word.split("=") for word in words[1:])
            self.loads = {int(load_id): float(value) for load_id, value in pairs}
            self.measure()
        elif words[0] == "state":
            self.states = [int(word) for word in words[1:]]
            self.measure()
        elif words[0] == "stop":
            if self.state != "registered":
                sys.exit(0)
            self.state, self.tries, self.retry_at = "stopping", 0, 0.0

    def receive(self, datagram):
        if len(datagram) < 48 or datagram[:5] != MAGIC + bytes([VERSION]):
            return
        message, code = datagram[:-16], datagram[-16:]
        _, _, kind, key_id, nonce, identifier, sequence = HEADER.unpack(message[:32])
        expected = hmac.digest(self.secret, message, "sha256")[:16]
        if key_id != self.key_id or not hmac.compare_digest(code, expected):
            return
        body = message[32:]
        if nonce != self.nonce:
            return
        if self.state == "registering":
            if kind == CHALLENGE and sequence == self.sequence:
                self.cookie = body
                if not self.hurried:
                    self.hurried = True
                    self.send_registration()
            elif kind == ACKNOWLEDGEMENT:
                self.state, self.identifier = "registered", identifier
                self.say("registered", f"{identifier:016x}")
                self.control(sequence, body)
                if self.measurement:
                    self.send_update()
        elif identifier != self.identifier:
            return
        elif self.state == "registered" and kind in (ACKNOWLEDGEMENT, QUERY):
            self.control(sequence, body)
        elif self.state == "registered" and kind == REGISTER_AGAIN:
            self.say("forgotten")
            self.register()
        elif self.state == "stopping" and kind == STOP_ACKNOWLEDGEMENT:
            self.say("stopped")
            sys.exit(0)

    def control(self, sequence, body):
        if sequence <= self.heard:
            return
        now = time.monotonic()
        self.heard, self.heard_at = sequence, now
        self.token, interval, self.lease, silence, flags, _ = CONTROL.unpack(body[:17])
        if self.interval != interval / 1000:
            self.say("interval", interval)
        self.interval, self.silence = interval / 1000, silence
        for index, bits in enumerate(body[17:]):
            if bits & 1:
                if self.alerts[index] is None:
                    self.say("alert", index, "on")
                self.alerts[index] = now + self.lease * self.interval
            elif self.alerts[index] is not None:
                self.alerts[index] = None
                self.say("alert", index, "off")
        if flags & 1:
            self.send_update()

    def tick(self):
        now = time.monotonic()
        for index, until in enumerate(self.alerts):
            if until is not None and now >= until:
                self.alerts[index] = None
                self.say("alert", index, "over")
        if self.state == "registered" and now >= self.heard_at + self.silence:
            self.say("silence")
            self.register()
        if self.state == "registered":
            if self.measurement and now >= self.measured_at + self.interval:
                self.measure()
        elif now >= self.retry_at:
            if self.state == "registering":
                self.hurried = False
                self.send_registration()
            elif self.tries == 5:
                sys.exit(1)
            else:
                self.send(STOP)
                self.retry_later()

    def run(self):
        said = b""
        while True:
            self.tick()
            ready, _, _ = select.select([self.socket, 0], [], [], 0.02)
            if self.socket in ready:
                try:
                    self.receive(self.socket.recv(2048))
                except ConnectionError:
                    pass
            if 0 in ready:
                more = os.read(0, 4096)
                if not more:
                    return
                *lines, said = (said + more).split(b"\n")
                for line in lines:
                    self.command(line.decode())


def main():
    parser = argparse.ArgumentParser(description="an agent that reports what it is told")
    parser.add_argument("--broker", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--location", required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--server", action="append", default=[])
    Agent(parser.parse_args()).run()


if __name__ == "__main__":
    main()
