#!/usr/bin/env python3
"""How soon ten balancers know of a load alert, and how soon another one decides upon a group's alerts when the one that did is killed.

Ten processes with [fleet] on this machine, and a group of forty locations of which a tenth may be under alert (max_share). Each round one
location's load rises: the time counts from when the last balancer has been told of the load, until the last one has the alert; and in the
same way for its end. Then loads of all locations change at random for two seconds, so that more of them want an alert than may have one; and
all balancers are asked again and again what they have under alert. What one has in two looks at it around a look at all others it
had at that moment, so the union of these is what was under alert anywhere. In every third round the balancer that decides is killed: the time counts until
all others name the same other one.

Before that ten processes have their configuration from an etcd of Debian ([store]): a change is pushed, and the time counts from when
`evenkeel store push` is started until the last balancer says that it is in force. Without etcd that part is left out.

Quartiles are printed, and written to bench/results/fleet.json.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

from console import QUICK, keep, spread
from soak import free_ports, wait_for

BALANCERS, LOCATIONS, ALLOWED = 10, 40, 4
ROUNDS = 6 if QUICK else 30


class Balancer:
    """One of the ten."""

    def __init__(self, binary, folder, number, admin, text):
        self.binary, self.admin = binary, admin
        self.name = f"lb-{number}"
        self.path = os.path.join(folder, f"{self.name}.toml")
        with open(self.path, "w") as file:
            file.write(f'workers = 1\n[admin]\nlisten = "127.0.0.1:{self.admin}"\n[node]\nname = "{self.name}"\n{text}')
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.binary, "run", self.path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.admin, self.name)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=20)

    def ask(self, method, path, body=None):
        self.connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{self.name}: {method} {path}: {answer.status} {text.decode()}")
        return json.loads(text) if text else None

    def report(self, location, load):
        self.ask("POST", f"/v1/locations/l{location}/loads", {"loads": {"cpu": load}})

    def alerts(self):
        return {int(one["name"][1:]) for one in self.ask("GET", "/v1/locations") if one["alert"]}

    def decides(self):
        fleet = self.ask("GET", "/v1/fleet")
        return fleet["groups"][0]["decides"] if fleet["groups"] and fleet["ready"] else None

    def end(self):
        self.process.kill()
        self.process.wait()


def rule(members):
    """A group of so many locations, of which a tenth may be under alert."""
    members = ", ".join(f'{{ address = "127.0.0.1:{1000 + n}", location = "l{n}" }}' for n in range(members))
    return (
        f'[rule.web]\nlisten = "127.0.0.1:0"\nload_max_age = "1h"\ngranularity = "on_demand"\nmembers = [{members}]\n'
        'alert = { threshold = 0.8, max_share = 0.1, shed_time = "0s" }\n'
    )


def until(what, holds, seconds=30):
    """Waits until something holds; answers how long that took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > seconds:
            raise SystemExit(f"not within {seconds} s: {what}")
    return time.monotonic() - begun


def decides(balancers):
    """Who decides, if all say the same."""
    said = {one.decides() for one in balancers}
    return said.pop() if len(said) == 1 else None


def under_alert(balancers):
    """What is under alert anywhere at one moment: what each of them has in two looks around it."""
    first = [one.alerts() for one in balancers]
    return set().union(*(before & one.alerts() for before, one in zip(first, balancers)))


def changes(binary):
    """How soon changes are in force on all ten, in seconds; None where there is no etcd."""
    if not (shutil.which("etcd") and shutil.which("etcdctl")):
        print("SKIPPED: changes of the configuration: no etcd")
        return None
    with contextlib.ExitStack() as last:
        folder = last.enter_context(tempfile.TemporaryDirectory())
        client, peer, *admins = free_ports(2 + BALANCERS)
        url, peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        etcd = subprocess.Popen(
            ["etcd", "--name=one", f"--data-dir={folder}/etcd", f"--initial-cluster=one={peer}", f"--initial-advertise-peer-urls={peer}"]
            + [f"--listen-peer-urls={peer}", f"--listen-client-urls={url}", f"--advertise-client-urls={url}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        last.callback(etcd.wait)
        last.callback(etcd.kill)
        asked = ["etcdctl", f"--endpoints={url}", "get", "x"]
        answers = lambda: subprocess.run(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
        until("etcd answers", answers)
        store = f'[store]\nendpoints = "{url}"\n'
        person, shared = os.path.join(folder, "person.toml"), os.path.join(folder, "shared.toml")
        with open(person, "w") as file:
            file.write(store + 'copy_file = "copy"\n')

        def push(members, *of):
            with open(shared, "w") as file:
                file.write(rule(members))
            subprocess.run([binary, "store", "--config", person, "push", shared, *of], check=True, stdout=subprocess.DEVNULL)

        push(LOCATIONS)
        balancers = []
        for number, admin in enumerate(admins):
            balancers.append(Balancer(binary, folder, number, admin, store + f'copy_file = "copy-{number}"\n'))
            last.callback(balancers[-1].end)
        running = lambda revision: all(one.ask("GET", "/v1/store")["running"] == revision for one in balancers)
        history = [binary, "store", "--config", person, "history"]
        said = lambda: subprocess.run(history, check=True, capture_output=True, text=True).stdout
        written_down = lambda revision: said().count(f": runs revision {revision} ") == BALANCERS
        until("all have the first revision", lambda: running(1))
        times = []
        for number in range(2, ROUNDS + 2):
            # Balancers write down what they run, and that is not the change.
            until("the store knows that all run it", lambda: written_down(number - 1))
            begun = time.monotonic()
            push(LOCATIONS - number % 2, "--of", "latest")
            until("all have the change", lambda: running(number))
            times.append(time.monotonic() - begun)
        return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/dist/evenkeel")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    changed = changes(args.binary)
    choice = random.Random(args.seed)
    known, ended, next_one, looks, most = [], [], [], 0, 0
    with contextlib.ExitStack() as last:
        folder = last.enter_context(tempfile.TemporaryDirectory())
        key = os.path.join(folder, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f"1:{os.urandom(32).hex()}\n")
        ports = free_ports(2 * BALANCERS)
        joined = [f"127.0.0.1:{port}" for port in ports[1:6:2]]
        balancers = []
        for number in range(BALANCERS):
            admin, listen = ports[2 * number : 2 * number + 2]
            fleet = f'[fleet]\nlisten = "127.0.0.1:{listen}"\njoin = {json.dumps(joined)}\nkey_file = "key"\n'
            balancers.append(Balancer(args.binary, folder, number, admin, fleet + rule(LOCATIONS)))
            last.callback(balancers[-1].end)

        def report(location, load):
            for one in balancers:
                one.report(location, load)

        def all_have(location, has):
            return until(f"l{location} under alert: {has}", lambda: all((location in one.alerts()) == has for one in balancers))

        until("all say who decides", lambda: decides(balancers))
        for number in range(ROUNDS):
            for location in range(LOCATIONS):
                report(location, 0.3)
            until("nothing is under alert", lambda: not any(one.alerts() for one in balancers), 90)
            location = choice.randrange(LOCATIONS)
            report(location, 0.95)
            known.append(all_have(location, True))
            report(location, 0.3)
            ended.append(all_have(location, False))
            end = time.monotonic() + 2
            while time.monotonic() < end:
                for _ in range(8):
                    report(choice.randrange(LOCATIONS), choice.random())
                most = max(most, len(under_alert(balancers)))
                looks += 1
            if number % 3 == 2:
                name = decides(balancers)
                killed = next(one for one in balancers if one.name == name)
                killed.process.send_signal(signal.SIGKILL)
                killed.process.wait()
                others = [one for one in balancers if one is not killed]
                next_one.append(until("another one decides", lambda: decides(others) not in (None, name)))
                killed.start()
                until("all say who decides", lambda: decides(balancers))
    in_ms = lambda all: spread([1000 * one for one in all]) | {"most": round(1000 * max(all), 1)}
    keep(
        {
            "balancers": BALANCERS,
            **({"a change is in force on all, ms": in_ms(changed)} if changed else {}),
            "all know of an alert, ms": in_ms(known),
            "all know of its end, ms": in_ms(ended),
            "all know who decides after the one that did was killed, ms": in_ms(next_one),
            "allowed under alert": ALLOWED,
            "most under alert anywhere": most,
            "looks": looks,
        },
        "fleet",
    )


if __name__ == "__main__":
    main()
