"""Comparison of `evenkeel sim` with simulated engines over sockets: the same requests, engines and rules."""

import json
import os
import statistics
import subprocess

import routers

# Routers over sockets, and how the simulator plays them: strategy of the group, and router of the engines.
PAIRS = {
    "evenkeel": ("inference", "evenkeel"),
    "nginx": ("inference", "least-request"),
    "haproxy": ("inference", "least-request"),
    "smg": ("inference", "smg"),
}
FIGURES = {
    "first_p50": "first_token_p50_ms",
    "first_p90": "first_token_p90_ms",
    "end_p50": "p50_ms",
    "end_p90": "p90_ms",
    "end_mean": "mean_ms",
    "hit_rate": "hit_share",
}


# Share of the time at the beginning that the simulator does not measure.
WARM_UP = 0.1


def count_seconds(requests):
    return max(1, int(requests[-1]["timestamp"] / 1000) + 1)


# Sets of addresses of the engines. The engine that is the first choice for a new prompt is chosen by hashes of addresses and, over
# sockets, of a secret that each process draws: with one set, the slow engine would be that of all new prompts, or of none.
ADDRESSES = 8


def simulated(folder, requests, kind, router):
    """Figures of the simulator, in seconds: medians over several sets of addresses."""
    all_figures = [simulate_with(folder, requests, kind, router, number) for number in range(ADDRESSES)]
    return {name: statistics.median(figures[name] for figures in all_figures) for name in FIGURES}


def simulate_with(folder, requests, kind, router, number):
    """The scenario has the engines of `mocker.py`, which are the simulator's defaults. Requests say how long their answers are, as
    those of `worlds.py` do."""
    strategy, rule = PAIRS[router]
    members = [f"10.0.{number}.{index}:8000" for index in range(1, 5)]
    listed = ", ".join(f'"{member}"' for member in members)
    with open(os.path.join(folder, "trace.jsonl"), "w") as file:
        file.writelines(json.dumps(one) + "\n" for one in requests)
    with open(os.path.join(folder, "simulated.toml"), "w") as file:
        file.write(f'[rule.models]\nlisten = "127.0.0.1:8080"\ngroup = "models"\n[group.models]\nmembers = [{listed}]\nstrategy = "{strategy}"\n')
    seconds = count_seconds(requests)
    with open(os.path.join(folder, "scenario.toml"), "w") as file:
        file.write(f'config = "simulated.toml"\nduration = "{seconds}s"\nseed = {number + 1}\n[engines]\nrouter = "{rule}"\nmax_tokens = true\n[prompts]\nkind = "trace"\nfile = "trace.jsonl"\n')
        if kind == "one slow":
            file.write(f'[member."{members[0]}"]\ncapacity = 0.25\n')
    out = os.path.join(folder, "simulated.json")
    command = [routers.Evenkeel.program, "sim", "--quiet", "--json", out, os.path.join(folder, "scenario.toml")]
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(f"evenkeel sim: {told.stderr}")
    with open(out) as file:
        figures = json.load(file)["points"][0]["figures"]
    return {ours: figures[theirs]["mean"] / (1000 if theirs.endswith("_ms") else 1) for ours, theirs in FIGURES.items()}


def name_turn(row):
    return row["world"], row["engines"], row["router"], row["round"]


def compare(found, listed, folder):
    """Ratios of what clients measured to what the simulator says, for each turn of a router that the simulator can play."""
    compared = {name_turn(row): row for row in found["simulator"]}
    for turn in found["turns"]:
        if turn["router"] not in PAIRS or turn["world"] not in listed or "Dynamo" in turn["world"] or turn["failed"] or "end_p50" not in turn["steady"]:
            continue
        requests = listed[turn["world"]](turn["round"] + 1)
        figures = simulated(folder, requests, turn["engines"], turn["router"])
        row = {name: turn[name] for name in ("world", "engines", "router", "round")}
        row |= {"simulated": {name: round(value, 5) for name, value in figures.items()}}
        row |= {"ratios": {name: round(turn["steady"][name] / value, 4) for name, value in figures.items() if value}}
        compared[name_turn(row)] = row
        print(f"simulator, {turn['world']}, {turn['engines']}: {turn['router']}: measured to simulated: {row['ratios']}", flush=True)
    found["simulator"] = list(compared.values())
