#!/usr/bin/env python3
"""Routers for engines of language models over real sockets: simulated engines, and the programs of other routers, in turns.

In each turn a router has new engines and a new process, and all routers of a round get the same requests at the same moments. A world with
equal engines, and the same world with one engine at a quarter of the speed, are played beside each other. See bench/README.md.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import cost
import dynamo
import load
import page
import routers
import simulate
import worlds

QUICK = os.environ.get("BENCH_QUICK") == "1"
ENGINES = 4
KINDS = {"equal": 1.0, "one slow": 0.25}
# The world of agents before Dynamo's simulated engines, which are slowed down: at their own speed nothing waits.
DYNAMO_WORLD, DYNAMO_SPEED = "agents, Dynamo's engines", 0.25
# Dynamo's front end refuses the fields that vllm-router adds, and answers no request of sglang-router.
NOT_BEFORE_DYNAMO = ("vllm-router", "sglang-router")
QUICK_BEFORE_DYNAMO = ("evenkeel", "nginx", "smg", "dynamo")


class Engines:
    """Processes of simulated engines."""

    def __init__(self, capacity):
        """Starts four engines, one of them with this capacity."""
        here = os.path.dirname(os.path.abspath(__file__))
        self.processes = []
        for index in range(ENGINES):
            command = [sys.executable, os.path.join(here, "mocker.py"), "--capacity", str(capacity if index == 0 else 1)]
            self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self.ports = [int(process.stdout.readline()) for process in self.processes]

    def states(self):
        found = []
        for port in self.ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as answer:
                found.append(json.load(answer))
        return found

    def wait_until_ready(self, seconds):
        return True

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def machine_times():
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return sum(fields), fields[3] + fields[4]


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def summarize(outcomes):
    """Figures of one turn; a request without a complete answer counts as failed only."""
    good = [one for one in outcomes if one.error is None and one.first is not None and one.end is not None]
    found = {"requests": len(outcomes), "failed": len(outcomes) - len(good)}
    errors = [one.error or "no token" for one in outcomes if one not in good]
    if errors:
        found["error"] = errors[0][:200]
    if not good:
        return found
    firsts, ends = [one.first for one in good], [one.end for one in good]
    gaps = [(one.end - one.first) / (one.tokens - 1) for one in good if one.tokens > 1]
    found |= {
        "end_mean": statistics.mean(ends),
        "end_p50": quantile(ends, 0.5),
        "end_p90": quantile(ends, 0.9),
        "first_mean": statistics.mean(firsts),
        "first_p50": quantile(firsts, 0.5),
        "first_p90": quantile(firsts, 0.9),
        "gap_mean": statistics.mean(gaps) if gaps else 0,
        "hit_rate": sum(one.cached_tokens for one in good) / max(1, sum(one.prompt_tokens for one in good)),
        "same_bytes": sum(one.same_bytes for one in good) / len(good),
        "same_messages": sum(one.same_messages for one in good) / len(good),
        "late_p99": quantile([one.late for one in good], 0.99),
    }
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}


def start_engines(router, capacity, model, folder):
    """Simulated engines of a turn: Dynamo's if there is a model for them."""
    if model is None:
        return Engines(capacity)
    capacities = [DYNAMO_SPEED * capacity, *[DYNAMO_SPEED] * (ENGINES - 1)]
    return dynamo.Engines(folder, model, capacities, router is dynamo.DynamoRouter)


def start_router(router, engines, folder):
    log = os.path.join(folder, f"{router.name}.log")
    if router is dynamo.DynamoRouter:
        return router(folder, [], log, engines)
    return router(folder, engines.ports, log)


def play_turn(router, requests, salt, model, folder):
    """Figures of a router in the world with equal engines, and in that with a slow one; none if it did not start."""
    engines, processes = [], []
    log = os.path.join(folder, f"{router.name}.log")
    try:
        for capacity in KINDS.values():
            engines.append(start_engines(router, capacity, model, folder))
        for each in engines:
            if not each.wait_until_ready(90):
                print(f"SKIPPED: engines for {router.name} did not begin to answer", flush=True)
                return None
            processes.append(start_router(router, each, folder))
        for process in processes:
            if not process.wait_until_ready(90):
                print(f"SKIPPED: {router.name} did not begin to answer: {tail(log)}", flush=True)
                return None
        measured_from = simulate.WARM_UP * simulate.count_seconds(requests)
        texts = {}
        bodies = [(one["timestamp"] / 1000, worlds.write_body(one, salt, routers.MODEL, texts)) for one in requests]
        before = [routers.cpu_seconds(process.process.pid) for process in processes]
        (all_before, idle_before), begin = machine_times(), time.monotonic()
        outcomes = asyncio.run(load.play([(process.url, bodies) for process in processes]))
        (all_after, idle_after), seconds = machine_times(), time.monotonic() - begin
        found = {}
        for kind, outcome, process, cpu, each in zip(KINDS, outcomes, processes, before, engines):
            states = each.states()
            found[kind] = summarize(outcome) | {
                "steady": summarize([one for one, (at, _) in zip(outcome, bodies) if at >= measured_from]),
                "cpu_seconds": round(routers.cpu_seconds(process.process.pid) - cpu, 4),
                "engine_late_p99": round(max((state["late_p99"] for state in states), default=0.0), 5),
                "engine_busy": [round(state["busy"] / seconds, 3) for state in states],
                "machine_busy": round(1 - (idle_after - idle_before) / max(1, all_after - all_before), 3),
                "load_average": os.getloadavg()[0],
            }
            if model is not None:  # Dynamo's engines do not tell what they have read.
                found[kind].pop("same_bytes", None), found[kind].pop("same_messages", None)
        return found
    finally:
        for each in [*processes, *engines]:
            each.end()


def tail(path):
    with open(path, errors="replace") as file:
        lines = file.read().strip().split("\n")
    return " / ".join(line[:200] for line in lines[-2:])


def come_first():
    """As root, what is measured gets the processors before other programs of the machine."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evenkeel", default="target/dist/evenkeel", help="program to measure")
    parser.add_argument("--traces", help="folder with conversation_trace.jsonl and synthetic_trace.jsonl of Mooncake, or .gz of them")
    parser.add_argument("--rounds", type=int, default=2 if QUICK else 5)
    parser.add_argument("--first-round", type=int, default=0, help="number of the first round: other rounds have other requests")
    parser.add_argument("--seconds", type=float, default=8 if QUICK else 45, help="length of a turn")
    parser.add_argument("--only", help="names of routers, with | between")
    parser.add_argument("--worlds", help="names of worlds, with | between")
    parser.add_argument("--parts", default="worlds,simulator,cost")
    parser.add_argument("--add", help="sockets.json of an earlier run, whose turns of other worlds, routers and rounds are kept")
    parser.add_argument("--out", default="bench/results/inference", help="folder for sockets.json, sockets.md and plots")
    args = parser.parse_args()
    routers.Evenkeel.program = os.path.abspath(args.evenkeel)
    os.makedirs(routers.CACHE, exist_ok=True)
    log = os.path.join(routers.CACHE, "install.log")
    names = args.only.split("|") if args.only else None
    plays = "worlds" in args.parts
    chosen = [one for one in routers.ROUTERS if plays and (names is None or one.name in names)]
    chosen = [one for one in chosen if one.prepare(log) or print(f"SKIPPED: {one.name} is not installed", flush=True)]
    # However this ends, no engine and no router stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    come_first()
    listed = worlds.list_worlds(QUICK, args.traces, args.seconds)
    listed[DYNAMO_WORLD] = listed["agents"]
    listed = {name: make for name, make in listed.items() if not args.worlds or name in args.worlds.split("|")}
    has_dynamo = plays and DYNAMO_WORLD in listed and (names is None or "dynamo" in names) and dynamo.prepare(log)
    if has_dynamo:
        chosen.append(dynamo.DynamoRouter)
    else:
        listed.pop(DYNAMO_WORLD, None)
        if plays:
            print("SKIPPED: dynamo, and its engines", flush=True)
    found = {"quick": QUICK, "seconds": args.seconds, "versions": {}, "turns": [], "simulator": [], "cost": []}
    for one in chosen:
        found["versions"][one.name] = one.version
    with tempfile.TemporaryDirectory(prefix="evenkeel-inference-") as folder:
        if plays:
            play_worlds(found, chosen, listed, range(args.first_round, args.first_round + args.rounds), folder)
        if args.add:
            add_earlier(found, args.add)
        if "simulator" in args.parts:
            simulate.compare(found, listed, folder)
        if "cost" in args.parts:
            found["cost"] = cost.measure(folder, 4 if QUICK else 10)
    page.write(found, args.out)


def add_earlier(found, path):
    """Keeps the figures of an earlier run that were not measured now."""
    with open(path) as file:
        earlier = json.load(file)
    played = {simulate.name_turn(turn) for turn in found["turns"]}
    for part in ("turns", "simulator"):
        found[part] = [row for row in earlier[part] if simulate.name_turn(row) not in played] + found[part]
    found["cost"] = earlier["cost"]
    found["versions"] = earlier["versions"] | found["versions"]


def is_played(router, world):
    """True if a router has turns in a world."""
    if world != DYNAMO_WORLD:
        return router is not dynamo.DynamoRouter
    return router.name not in NOT_BEFORE_DYNAMO and (not QUICK or router.name in QUICK_BEFORE_DYNAMO)


def play_worlds(found, chosen, listed, rounds, folder):
    skipped = set()
    for turn in rounds:
        for world, make in listed.items():
            requests = make(turn + 1)
            # Each round begins with another router.
            model = dynamo.write_model(folder) if world == DYNAMO_WORLD else None
            for router in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
                if (world, router) in skipped or not is_played(router, world):
                    continue
                told = None
                for attempt in range(2):  # Another program may have taken a port meanwhile.
                    told = told or play_turn(router, requests, f"{world}/{turn}/{attempt}/{router.name}", model, folder)
                if told is None:
                    skipped.add((world, router))
                    continue
                for kind, figures in told.items():
                    found["turns"].append({"world": world, "engines": kind, "router": router.name, "round": turn} | figures)
                    print(
                        f"{world}, {kind}: {router.name}: {figures.get('end_mean', 0):.3f} s to the end, first token p50 {figures.get('first_p50', 0):.3f} "
                        f"p90 {figures.get('first_p90', 0):.3f}, hit rate {figures.get('hit_rate', 0):.3f}, {figures['failed']} of {figures['requests']} failed, "
                        f"machine {figures['machine_busy']:.2f} busy",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
