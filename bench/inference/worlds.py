"""Requests of the worlds, in the format of Mooncake's traces, and their texts: equal ids of blocks are equal texts."""

import gzip
import itertools
import json
import os
import random

BLOCK, BYTES = 512, 4
ENDINGS = ("", ".gz")
# A word and its space are a token of four bytes, for engines that have a tokenizer, too.
WORDS = ["".join(letters) for letters in itertools.product("abcdefghijklmnop", repeat=3)]


def make_agents(seconds, seed, rate=1.0):
    """Sessions that share a beginning of 1,024 tokens, and whose prompts grow with each turn. Turns come at fixed times."""
    draw, found, ids = random.Random(seed), [], iter(range(2, 1 << 60))
    # Sessions begin before the load does, as if it had come for a while.
    begins = -4.0
    while (begins := begins + draw.uniform(0.7, 1.3) / rate) < seconds:
        blocks, tokens, at = [0, 1], 1024 + int(draw.uniform(2000, 5000)), begins
        for _ in range(draw.randint(5, 15)):
            while len(blocks) * BLOCK < tokens:
                blocks.append(next(ids))
            if 0 <= at < seconds:
                found.append((at, tokens, 1 + int(draw.expovariate(1 / 40)), list(blocks)))
            tokens += int(draw.uniform(150, 650))
            at += 0.3 + draw.expovariate(1.0)
    return order(found)


def make_shared(seconds, seed, rate=6.0):
    """Prompts that begin with one of 32 texts of 8,192 tokens, some of them more popular than others (Zipf, 1.1)."""
    draw, found, ids, at = random.Random(seed), [], iter(range(32 * 16, 1 << 60)), 0.0
    weights = [1 / rank**1.1 for rank in range(1, 33)]
    while (at := at + draw.expovariate(rate)) < seconds:
        text = draw.choices(range(32), weights)[0]
        tokens = 8192 + max(1, int(draw.expovariate(1 / 1000)))
        blocks = list(range(text * 16, text * 16 + 16))
        while len(blocks) * BLOCK < tokens:
            blocks.append(next(ids))
        found.append((at, tokens, 1 + int(draw.expovariate(1 / 60)), blocks))
    return order(found)


def read_trace(path, seconds, speed):
    """Beginning of a trace of Mooncake, faster by `speed`."""
    found, opener = [], gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        for line in file:
            one = json.loads(line)
            at = one["timestamp"] / 1000 / speed
            if at >= seconds:
                break
            found.append((at, one["input_length"], one["output_length"], one["hash_ids"]))
    return spread_out(found)


def spread_out(found):
    """Times of a trace are rounded to three seconds: requests of a time are spread until the next one."""
    times = sorted({one[0] for one in found})
    ends = dict(zip(times, times[1:] + [2 * times[-1] - times[-2] if len(times) > 1 else 1.0]))
    groups = {}
    for one in found:
        groups.setdefault(one[0], []).append(one)
    return order([(at + (ends[at] - at) * index / len(group), *one[1:]) for at, group in groups.items() for index, one in enumerate(group)])


def order(found):
    found.sort(key=lambda one: one[0])
    return [{"timestamp": round(1000 * at), "input_length": tokens, "output_length": out, "hash_ids": blocks} for at, tokens, out, blocks in found]


def find_trace(folder, name):
    for end in ENDINGS:
        path = os.path.join(folder or "", f"{name}_trace.jsonl{end}")
        if folder and os.path.exists(path):
            return path
    return None


def list_worlds(quick, folder, seconds):
    """Names of worlds, and functions that make their requests from a seed."""
    worlds = {"agents": lambda seed: make_agents(seconds, seed), "shared prompts": lambda seed: make_shared(seconds, seed)}
    if quick:
        return {"agents": worlds["agents"]}
    for name, speed in [("conversation", 0.35), ("synthetic", 0.35)]:
        if path := find_trace(folder, name):
            worlds[name] = lambda _, path=path, speed=speed: read_trace(path, seconds, speed)
    return worlds


def block_text(block, salt):
    """Text of a block: 2,048 bytes, the same each time."""
    draw = random.Random(f"{salt}/{block}")
    return "".join(f"{word} " for word in draw.choices(WORDS, k=BLOCK))


def write_body(request, salt, model, texts):
    """Body of a chat completion; `texts` keeps the blocks' texts."""
    parts = []
    for block in request["hash_ids"]:
        if block not in texts:
            texts[block] = block_text(block, salt)
        parts.append(texts[block])
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "".join(parts)[: request["input_length"] * BYTES]}],
        "max_tokens": request["output_length"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()
