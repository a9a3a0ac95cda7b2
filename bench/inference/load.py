"""Clients of engines: an open loop with a connection for each request."""

import asyncio
import json
import os
import time
import urllib.parse

from mocker import digest, digest_messages

# Seconds for an answer.
TIMEOUT = 30 if os.environ.get("BENCH_QUICK") == "1" else 60


class Outcome:
    def __init__(self, late):
        self.late, self.status, self.error = late, 0, None
        self.first = self.end = None
        self.prompt_tokens = self.cached_tokens = self.tokens = 0
        self.same_bytes = self.same_messages = False


async def read_chunks(reader, fields):
    """Parts of an answer's body, as they come."""
    if fields.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in fields:
        yield await reader.readexactly(int(fields["content-length"]))
    else:
        while data := await reader.read(1 << 16):
            yield data


def take_event(outcome, event, body, now):
    for line in event.split(b"\n"):
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            outcome.end = now if data == b"[DONE]" and line.startswith(b"data:") else outcome.end
            continue
        told = json.loads(data)
        for choice in told.get("choices") or []:
            content = (choice.get("delta") or {}).get("content")
            if not content:
                continue
            outcome.tokens += 1
            if outcome.first is None:
                outcome.first = now
                words = content.split()[0].split("-")
                outcome.same_bytes = words[0] == digest(body)
                outcome.same_messages = words[-1] == digest_messages(json.loads(body))
        if usage := told.get("usage"):
            outcome.prompt_tokens = usage.get("prompt_tokens") or 0
            outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def exchange(outcome, host, port, body, due):
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nAuthorization: Bearer none\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        outcome.status = int(lines[0].split(" ")[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        seen = b""
        async for data in read_chunks(reader, fields):
            now = time.monotonic() - due
            seen += data.replace(b"\r\n", b"\n")
            if outcome.status != 200:
                continue
            *events, seen = seen.split(b"\n\n")
            for event in events:
                take_event(outcome, event, body, now)
        if outcome.status != 200:
            outcome.error = f"{outcome.status}: {seen[:200].decode(errors='replace')}"
        elif outcome.end is None:
            outcome.error = "the answer has no end"
    finally:
        writer.close()


async def send_at(due, url, body):
    await asyncio.sleep(max(0, due - time.monotonic()))
    outcome = Outcome(time.monotonic() - due)
    where = urllib.parse.urlsplit(url)
    try:
        await asyncio.wait_for(exchange(outcome, where.hostname, where.port, body, due), TIMEOUT)
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    return outcome


async def play(loads):
    """Plays several lists of (seconds, body), each to a URL, at the same time."""
    begin = time.monotonic() + 0.3
    tasks = [[asyncio.create_task(send_at(begin + at, url, body)) for at, body in requests] for url, requests in loads]
    return [[await task for task in each] for each in tasks]
