"""Page and plots of a run over sockets."""

import json
import os
import statistics

PEERS_NOT = ("evenkeel", "evenkeel, metrics", "evenkeel, adaptive")
COLOURS = {"end_mean": "#4c78a8", "first_p50": "#72b7b2", "first_p90": "#f58518"}
TITLES = {"end_mean": "mean time to the end", "first_p50": "first token, p50", "first_p90": "first token, p90"}


def by_router(turns, world, engines):
    found = {}
    for turn in turns:
        if (turn["world"], turn["engines"]) == (world, engines):
            found.setdefault(turn["router"], []).append(turn)
    return found


def median(turns, name):
    values = [turn[name] for turn in turns if name in turn]
    return statistics.median(values) if values else None


def has_answered(turns):
    """True if at most 1 % of the requests have failed."""
    return sum(turn["failed"] for turn in turns) <= 0.01 * sum(turn["requests"] for turn in turns)


def find_best(rows, figure):
    """Router with the lowest mean, as a part of Evenkeel's mean of the same rounds: not all routers play all rounds."""
    peers = {}
    for name, turns in rows.items():
        pairs = pair_rounds(turns, rows["evenkeel"], figure)
        if name not in PEERS_NOT and has_answered(turns) and pairs:
            peers[name] = sum(theirs for theirs, _ in pairs) / sum(ours for _, ours in pairs)
    return min(peers, key=peers.get, default=None)


def pair_rounds(turns, others, figure):
    """Figures of two routers in the rounds that both have played."""
    other = {turn["round"]: turn for turn in others}
    pairs = [(turn, other[turn["round"]]) for turn in turns if turn["round"] in other]
    return [(a[figure], b[figure]) for a, b in pairs if figure in a and b.get(figure)]


def ratios(ours, theirs, figure):
    """Ratios within rounds, in order."""
    return sorted(a / b for a, b in pair_rounds(ours, theirs, figure))


def spread(values, digits=2):
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    return f"{middle} ({values[0]:.{digits}f} to {values[-1]:.{digits}f})" if len(values) > 1 else middle


def number(value):
    return "-" if value is None else f"{value:.3f}"


def list_worlds(turns):
    return list(dict.fromkeys((turn["world"], turn["engines"]) for turn in turns))


def judge_rows(found):
    """Ratios of Evenkeel, with nothing set but addresses, to the best other router of each world."""
    lines = [
        "| world | engines | best of the others | mean time to the end | asked | reached | first token p50 | first token p90 | hit rate, theirs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for world, engines in list_worlds(found["turns"]):
        rows = by_router(found["turns"], world, engines)
        best = find_best(rows, "end_mean") if "evenkeel" in rows else None
        if best is None:
            continue
        ours, theirs = rows["evenkeel"], rows[best]
        asked = 1.0 if engines == "equal" else 0.9
        means = ratios(ours, theirs, "end_mean")
        reached = "yes" if means and statistics.median(means) <= asked and has_answered(ours) else "no"
        firsts = []
        for figure in ("first_p50", "first_p90"):
            peer = find_best(rows, figure)
            firsts.append(f"{spread(ratios(ours, rows[peer], figure))} of {peer}")
        hits = f"{number(median(ours, 'hit_rate'))}, {number(median(theirs, 'hit_rate'))}"
        lines.append(f"| {world} | {engines} | {best} | {spread(means)} | {asked} | {reached} | {firsts[0]} | {firsts[1]} | {hits} |")
    return lines


def world_rows(turns, world, engines):
    lines = [
        "| router | mean time to the end | first token p50 | first token p90 | hit rate | failed | prompts unchanged | bodies unchanged | CPU ms of a request |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in by_router(turns, world, engines).items():
        requests = sum(turn["requests"] for turn in rows)
        cells = [number(median(rows, figure)) for figure in ("end_mean", "first_p50", "first_p90", "hit_rate")]
        same = []
        for figure in ("same_messages", "same_bytes"):
            values = [turn[figure] for turn in rows if figure in turn]
            same.append("yes" if values and min(values) == 1 else "no" if values else "-")
        cpu = 1000 * sum(turn["cpu_seconds"] for turn in rows) / max(1, requests)
        failed = sum(turn["failed"] for turn in rows)
        lines.append(f"| {name} | {' | '.join(cells)} | {failed} of {requests} | {' | '.join(same)} | {cpu:.2f} |")
    return lines


def simulator_rows(found):
    figures = ("first_p50", "first_p90", "end_p50", "end_p90", "end_mean", "hit_rate")
    lines = [f"| world | engines | router | {' | '.join(figures)} |", "|---" * (3 + len(figures)) + "|"]
    groups = {}
    for row in found["simulator"]:
        groups.setdefault((row["world"], row["engines"], row["router"]), []).append(row["ratios"])
    for key, rows in groups.items():
        cells = [spread(sorted(row[name] for row in rows if name in row)) for name in figures]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    return lines


def judge_simulator(found):
    """Share of the figures of Evenkeel's own rows, medians over rounds, that are within 15 %."""
    groups = {}
    for row in found["simulator"]:
        if row["router"] == "evenkeel":
            for name in ("first_p50", "first_p90"):
                if name in row["ratios"]:
                    groups.setdefault((row["world"], row["engines"], name), []).append(row["ratios"][name])
    medians = [statistics.median(values) for values in groups.values()]
    return sum(abs(one - 1) <= 0.15 for one in medians), len(medians)


def cost_rows(found):
    lines = ["| request | inference, us | plain rule, us | ratio | figure | limit | reached |", "|---|---|---|---|---|---|---|"]
    for row in found["cost"]:
        ours, plain = (statistics.median(row["micros"][name]) for name in ("evenkeel", "plain rule"))
        reached = "yes" if row["reached"] else "no"
        lines.append(
            f"| {row['request']} | {ours:.1f} | {plain:.1f} | {spread(row['ratios'])} | {row['figure']:g} {row['what']} | {row['limit']:g} | {reached} |"
        )
    return lines


def describe_machine(turns):
    if not turns:
        return []
    busy = sorted(turn["machine_busy"] for turn in turns)
    late = sorted(turn["engine_late_p99"] for turn in turns if turn["engine_busy"]) or [0.0]
    sent = sorted(turn["late_p99"] for turn in turns if "late_p99" in turn) or [0.0]
    loads = sorted(turn["load_average"] for turn in turns)
    told = (
        f"The machine's processors were {100 * busy[0]:.0f} % to {100 * busy[-1]:.0f} % busy in a turn (median {100 * statistics.median(busy):.0f} %), with a load average of "
        f"{loads[0]:.1f} to {loads[-1]:.1f}. Requests were sent {1000 * statistics.median(sent):.1f} ms late (p99, median of the turns; {1000 * sent[-1]:.1f} at most), and engines' steps ended "
        f"{1000 * statistics.median(late):.1f} ms late (p99; {1000 * late[-1]:.1f} at most)."
    )
    if statistics.median(busy) > 0.9:
        told += " **The processors were saturated by other work: differences of a few hundredths mean nothing.**"
    return [told, ""]


def count_rounds(turns):
    """Least and most rounds of a router in a world, as text."""
    counts = {}
    for turn in turns:
        place = turn["world"], turn["engines"], turn["router"]
        counts[place] = counts.get(place, 0) + 1
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    return str(most) if least == most else f"{least} to {most}"


def plot(turns, world, engines):
    """Bars of three figures for each router, as SVG."""
    rows = by_router(turns, world, engines)
    figures = list(COLOURS)
    most = max((median(each, figure) or 0 for each in rows.values() for figure in figures), default=0) or 1
    height = 40 + len(rows) * 54
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height + 20}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{world}, {engines}: seconds, medians of the rounds; lines from the least to the most</text>',
    ]
    for index, (name, each) in enumerate(rows.items()):
        top = 34 + index * 54
        parts.append(f'<text x="10" y="{top + 26}">{name}</text>')
        for place, figure in enumerate(figures):
            values = sorted(turn[figure] for turn in each if figure in turn)
            if not values:
                continue
            y, scale = top + place * 15, 480 / most
            middle = min(statistics.median(values), most)
            low, high = (150 + min(one, most) * scale for one in (values[0], values[-1]))
            parts.append(f'<rect x="150" y="{y}" width="{middle * scale:.1f}" height="12" fill="{COLOURS[figure]}"/>')
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 6}" y2="{y + 6}" stroke="black"/>')
            parts.append(f'<text x="{max(150 + middle * scale, high) + 5:.1f}" y="{y + 10}" font-size="10">{statistics.median(values):.2f}</text>')
    for place, figure in enumerate(figures):
        x = 150 + place * 170
        parts.append(f'<rect x="{x}" y="{height}" width="12" height="12" fill="{COLOURS[figure]}"/><text x="{x + 17}" y="{height + 11}">{TITLES[figure]}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(found, out):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "sockets.json"), "w") as file:
        head = {name: value for name, value in found.items() if not isinstance(value, list)}
        parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        for name, value in found.items():
            if isinstance(value, list):
                parts.append(f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(one) for one in value) + "\n]")
        file.write("{" + ",\n".join(parts) + "}\n")
    with open(os.path.join(out, "sockets.md"), "w") as file:
        file.write("\n".join(write_page(found, out)) + "\n")
    print(f"wrote {out}/sockets.json, sockets.md and plots", flush=True)


def write_page(found, out):
    kind = "quick run (`BENCH_QUICK=1`)" if found["quick"] else "run"
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    lines = [
        "# Routers for engines of language models, over real sockets",
        "",
        f"`make bench-inference` has written this page: a {kind} with {count_rounds(found['turns'])} rounds and turns of {found['seconds']:g} seconds. {versions}.",
        "",
        "Four simulated engines (`bench/inference/mocker.py`) behind sockets have the settings of the engines in [virtual time](README.md). Each router is a process of its own with",
        "the configuration of its users; routers take turns, with new engines, a new process and the same requests in each round. `evenkeel` has nothing set but addresses and",
        '`strategy = "inference"`, and reads no metrics; `evenkeel, metrics` reads those of the engines each second. Times are in seconds, from the moment at which a request was due.',
        "Lower is better, except for hit rates. Ratios are taken within a round: median, and the lowest and the highest of the rounds.",
        "",
        *describe_machine(found["turns"]),
    ]
    if found["turns"]:
        lines += ["## Beside the best of the other routers", "", *judge_rows(found), ""]
        for world, engines in list_worlds(found["turns"]):
            name = f"sockets-{world}-{engines}.svg".replace(" ", "-").replace(",", "").replace("'", "").lower()
            with open(os.path.join(out, name), "w") as file:
                file.write(plot(found["turns"], world, engines))
            lines += [f"## {world}, {engines}", "", *world_rows(found["turns"], world, engines), "", f"![{world}, {engines}]({name})", ""]
        lines += ["*Prompts unchanged*: the engine has read the messages that the client has sent. *Bodies unchanged*: byte for byte.", ""]
    if found["simulator"]:
        within, count = judge_simulator(found)
        lines += [
            "## The simulator beside these engines",
            "",
            "Ratios of what clients measured to what `evenkeel sim` says of the same requests, without the first tenth of the time; medians over eight sets of the engines' addresses, whose hashes decide where new prompts begin. `nginx` and `haproxy` are compared with the",
            "simulator's `least-request`, `smg` with its rule of smg. For Evenkeel's time to the first token, p50 and p90 within 15 % are asked:",
            f"{within} of {count} medians are.",
            "",
            *simulator_rows(found),
            "",
        ]
    if found["cost"]:
        lines += ["## CPU time of the balancer", "", "Members answer at once; `220 KB` is a prompt that no member knows.", "", *cost_rows(found), ""]
    return lines
