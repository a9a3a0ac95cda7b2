#!/usr/bin/env python3
"""Simulated engine of a language model behind real sockets: the engine of `evenkeel sim`, with the API of vLLM.

An engine batches continuously: in a step it writes a token of each stream and reads parts of prompts, in 2,048 tokens at most. It remembers
prompts in blocks of 512 tokens; the least recently used block goes first. A token is four bytes of the prompt. Steps take time, not
CPU: each step ends when it is due, so a late processor delays a token but slows no engine down.

The first token of an answer has a digest of the request's body, and of its messages: clients compare them with what they sent.
"""

import argparse
import asyncio
import collections
import hashlib
import json

BLOCK, BYTES = 512, 4


def digest(data):
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def digest_messages(body):
    return digest(json.dumps(body.get("messages"), sort_keys=True).encode())


class Cache:
    """Blocks of prompts, and blocks of answers that nobody else can use."""

    def __init__(self, blocks):
        self.free, self.held, self.known = blocks, {}, collections.OrderedDict()

    def count_prefix(self, blocks):
        for index, block in enumerate(blocks):
            if block not in self.held and block not in self.known:
                return index
        return len(blocks)

    def take(self, blocks, private, forced):
        """Holds known blocks and takes private ones; false if there is no room."""
        room = self.free + len(self.known) - sum(block in self.known for block in blocks)
        if room < private and not forced:
            return False
        for block in blocks:
            self.known.pop(block, None)
            self.held[block] = self.held.get(block, 0) + 1
        for _ in range(private):
            if self.free <= 0 and self.known:
                self.known.popitem(last=False)
            else:
                self.free -= 1
        return True

    def publish(self, block):
        """A private block becomes one that others can use. Two requests that have read the same text share it."""
        if self.known.pop(block, None) or block in self.held:
            self.free += 1
        self.held[block] = self.held.get(block, 0) + 1

    def release(self, blocks, private):
        self.free += private
        for block in reversed(blocks):
            self.held[block] -= 1
            if not self.held[block]:
                del self.held[block]
                self.known[block] = True

    @property
    def share(self):
        used = len(self.held)
        return used / max(1, used + len(self.known) + self.free)


class Request:
    def __init__(self, body, raw, writer, done):
        text = "".join(prompt_texts(body)).encode()
        self.tokens = max(1, len(text) // BYTES)
        chain, self.blocks = b"", []
        for at in range(0, self.tokens // BLOCK * BLOCK * BYTES, BLOCK * BYTES):
            chain = hashlib.blake2b(chain + text[at : at + BLOCK * BYTES], digest_size=8).digest()
            self.blocks.append(chain)
        self.limit = max(1, int(body.get("max_completion_tokens") or body.get("max_tokens") or 16))
        self.is_stream = bool(body.get("stream"))
        self.has_usage = not self.is_stream or bool((body.get("stream_options") or {}).get("include_usage"))
        self.model, self.digests = body.get("model"), f"{digest(raw)}-{digest_messages(body)}"
        self.writer, self.done = writer, done
        self.cached = self.unread = self.reading = self.written = self.held = self.private = 0
        self.is_writing = False
        self.first_cached = None

    def usage(self):
        return {
            "prompt_tokens": self.tokens,
            "completion_tokens": self.written,
            "total_tokens": self.tokens + self.written,
            "prompt_tokens_details": {"cached_tokens": self.first_cached or 0},
        }

    def event(self, **fields):
        head = {"id": "chatcmpl-mocker", "object": "chat.completion.chunk", "created": 1, "model": self.model}
        send_chunk(self.writer, b"data: " + json.dumps(head | fields).encode() + b"\n\n")

    def write_token(self, is_last):
        if self.first_cached is None:
            self.first_cached = self.cached
        if not self.is_stream:
            return
        delta = {"content": f"{self.digests} " if self.written == 1 else f"t{self.written} "}
        if self.written == 1:
            delta["role"] = "assistant"
        self.event(choices=[{"index": 0, "delta": delta, "finish_reason": "length" if is_last else None}])


def prompt_texts(body):
    for message in body.get("messages") or []:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        else:
            for part in content or []:
                yield part.get("text") or ""


def send_chunk(writer, data):
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


class Engine:
    def __init__(self, args):
        self.args, self.slowness = args, 1 / args.capacity
        self.cache = Cache(max(1, args.cache // BLOCK))
        self.waiting, self.running = collections.deque(), []
        self.due, self.late = None, []
        self.busy, self.queries, self.hits, self.stopped = 0.0, 0, 0, 0

    def push(self, request):
        self.waiting.append(request)
        if self.due is None:
            self.begin_step(asyncio.get_running_loop().time())

    def make_room(self):
        index = 0
        while index < len(self.running):
            request = self.running[index]
            has_room = request.tokens + request.written < (request.held + request.private) * BLOCK
            if request.unread > 0 or has_room:
                index += 1
            elif self.cache.take([], 1, len(self.running) == 1):
                request.private += 1
                index += 1
            else:
                last = self.running.pop()
                self.stopped += 1
                self.cache.release(last.blocks[: last.held], last.private)
                self.waiting.appendleft(last)

    def admit(self):
        while self.waiting and len(self.running) < self.args.max_requests:
            request = self.waiting[0]
            tokens = request.tokens + request.written
            held = min(self.cache.count_prefix(request.blocks), (tokens - 1) // BLOCK)
            private = -(-tokens // BLOCK) - held
            if not self.cache.take(request.blocks[:held], private, not self.running):
                return
            self.waiting.popleft()
            request.cached, request.held, request.private = held * BLOCK, held, private
            request.unread, request.reading, request.is_writing = tokens - request.cached, 0, False
            self.queries += tokens
            self.hits += request.cached
            self.running.append(request)

    def begin_step(self, now):
        self.drop_gone()
        self.make_room()
        self.admit()
        if not self.running:
            self.due = None
            return
        streams = 0
        for request in self.running:
            request.is_writing, request.reading = request.unread == 0, 0
            streams += request.is_writing
        left, read = max(1, self.args.step_tokens - streams), 0
        for request in self.running:
            request.reading = min(request.unread, left)
            left -= request.reading
            read += request.reading
        seconds = self.args.step + self.args.read * read + self.args.stream * streams
        seconds *= self.slowness / self.args.speedup_ratio
        self.busy += seconds
        self.due = now + seconds
        asyncio.get_running_loop().call_at(self.due, self.end_step)

    def drop_gone(self):
        gone = [one for one in self.running if one.writer.is_closing()]
        for request in gone:
            self.cache.release(request.blocks[: request.held], request.private)
            self.running.remove(request)
            request.done.cancel()
        self.waiting = collections.deque(one for one in self.waiting if not one.writer.is_closing())

    def end_step(self):
        now = self.due
        self.late.append(asyncio.get_running_loop().time() - now)
        for request in list(self.running):
            has_read = request.reading > 0
            request.unread -= request.reading
            if not (request.is_writing or has_read and request.unread == 0):
                continue
            if has_read:
                for block in request.blocks[request.held :]:
                    self.cache.publish(block)
                request.private -= len(request.blocks) - request.held
                request.held = len(request.blocks)
            request.written += 1
            is_last = request.written >= request.limit
            request.write_token(is_last)
            if is_last:
                self.cache.release(request.blocks[: request.held], request.private)
                self.running.remove(request)
                if not request.done.done():
                    request.done.set_result(None)
        self.begin_step(now)

    def metrics(self):
        lines = []
        for name, kind, value in [
            ("num_requests_waiting", "gauge", len(self.waiting)),
            ("num_requests_running", "gauge", len(self.running)),
            ("kv_cache_usage_perc", "gauge", self.cache.share),
            ("prefix_cache_queries_total", "counter", self.queries),
            ("prefix_cache_hits_total", "counter", self.hits),
        ]:
            lines.append(f'# TYPE vllm:{name} {kind}\nvllm:{name}{{model_name="{self.args.model}"}} {value}\n')
        return "".join(lines)


class Server:
    def __init__(self, args):
        self.engine, self.model = Engine(args), args.model

    async def serve(self, reader, writer):
        try:
            while await self.serve_request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, asyncio.CancelledError, ValueError):
            pass
        finally:
            writer.close()

    async def serve_request(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, version = head[0].split(" ")
        if version != "HTTP/1.1":  # Routers try gRPC first.
            return False
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if "100-continue" in fields.get("expect", "").lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await read_body(reader, fields)
        if method == "POST" and path.split("?")[0].endswith("/completions"):
            await self.complete(writer, body)
        elif method == "POST" and path == "/capacity":
            self.engine.slowness = 1 / float(body)
            self.send(writer, b"{}")
        else:
            self.answer(writer, path.split("?")[0])
        await writer.drain()
        return fields.get("connection", "").lower() != "close"

    async def complete(self, writer, raw):
        try:
            body = json.loads(raw)
        except ValueError:
            return self.send(writer, b'{"error":{"message":"no JSON"}}', status=b"400 Bad Request")
        request = Request(body, raw, writer, asyncio.get_running_loop().create_future())
        if request.is_stream:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self.engine.push(request)
        await request.done
        if request.is_stream:
            if request.has_usage:
                request.event(choices=[], usage=request.usage())
            send_chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            return None
        message = {"role": "assistant", "content": " ".join([request.digests, *(f"t{index}" for index in range(2, request.written + 1))])}
        answer = {"id": "chatcmpl-mocker", "object": "chat.completion", "created": 1, "model": request.model}
        answer |= {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": request.usage()}
        return self.send(writer, json.dumps(answer).encode())

    def answer(self, writer, path):
        engine = self.engine
        if path == "/metrics":
            return self.send(writer, engine.metrics().encode(), b"text/plain; version=0.0.4")
        if path == "/state":
            late = sorted(engine.late) or [0.0]
            told = {"late_p99": late[int(0.99 * (len(late) - 1))], "busy": engine.busy, "steps": len(engine.late)}
            told |= {"queries": engine.queries, "hits": engine.hits, "preempted": engine.stopped}
        elif path == "/v1/models":
            told = {"object": "list", "data": [{"id": self.model, "object": "model", "created": 1, "owned_by": "mocker", "max_model_len": 1000000}]}
        elif path in ("/get_model_info", "/model_info"):
            told = {"model_path": self.model, "tokenizer_path": "", "is_generation": True, "served_model_name": self.model}
        elif path in ("/get_server_info", "/server_info"):
            told = {"model_path": self.model, "model_id": self.model, "served_model_name": self.model, "version": "0.1", "dp_size": 1}
        elif path == "/version":
            told = {"version": "0.11.0"}
        elif path == "/get_load":
            told = [{"dp_rank": 0, "num_reqs": len(engine.running), "num_waiting_reqs": len(engine.waiting), "num_tokens": 0}]
        elif path in ("/health", "/health_generate", "/ping"):
            told = {}
        else:
            return self.send(writer, b"{}", status=b"404 Not Found")
        return self.send(writer, json.dumps(told).encode())

    @staticmethod
    def send(writer, body, kind=b"application/json", status=b"200 OK"):
        writer.write(b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (status, kind, len(body), body))


async def read_body(reader, fields):
    if fields.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)
    return await reader.readexactly(int(fields.get("content-length", 0)))


async def run(args):
    server = Server(args)
    listener = await asyncio.start_server(server.serve, args.host, args.port, limit=1 << 22, backlog=1024)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="mock")
    parser.add_argument("--capacity", type=float, default=1, help="speed of this engine, as a multiple of the others'; `POST /capacity` sets another one")
    parser.add_argument("--speedup-ratio", type=float, default=1, help="speed of time")
    parser.add_argument("--cache", type=int, default=512_000, help="tokens")
    parser.add_argument("--step-tokens", type=int, default=2048)
    parser.add_argument("--max-requests", type=int, default=256)
    parser.add_argument("--step", type=float, default=6e-3)
    parser.add_argument("--read", type=float, default=125e-6)
    parser.add_argument("--stream", type=float, default=350e-6)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
