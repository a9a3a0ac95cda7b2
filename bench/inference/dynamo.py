"""NVIDIA Dynamo's simulated engines, and its own router in front of them.

An engine is a `dynamo.mocker`; a `dynamo.frontend` makes it a server with OpenAI's API. Dynamo's router is a front end of all
engines, which gets exact events of their caches. Processes find each other by files; nothing is loaded from a network.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import routers
import worlds

BLOCK = 64
CACHE_TOKENS = 512_000
PYTHON = os.path.join(routers.CACHE, "dynamo", "bin", "python")

MAKE_TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers
vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
for word in json.load(sys.stdin):
    vocabulary[word] = len(vocabulary)
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer.save(sys.argv[1])
"""


def prepare(log):
    """Installs Dynamo; false if it cannot be had. Its dependency `aisimulate` is a placeholder, so the others are named here."""
    return routers.install("dynamo", [["--no-deps", *routers.DYNAMO], routers.DYNAMO_NEEDS], log)


def write_model(folder):
    """Writes what Dynamo reads of a model: a tokenizer that counts a token for each word of a prompt, and settings."""
    path = os.path.join(folder, "model")
    os.makedirs(path, exist_ok=True)
    command = [PYTHON, "-c", MAKE_TOKENIZER, os.path.join(path, "tokenizer.json")]
    subprocess.run(command, input=json.dumps(worlds.WORDS), text=True, check=True, capture_output=True)
    count = len(worlds.WORDS) + 3
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": count, "max_position_embeddings": 1_000_000}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    for name, told in [
        ("config.json", config | sizes | ends),
        ("generation_config.json", ends),
        ("tokenizer_config.json", names | {"model_max_length": 1_000_000, "chat_template": template}),
    ]:
        with open(os.path.join(path, name), "w") as file:
            json.dump(told, file)
    return path


def environment(folder):
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": folder,
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
    }


def end_process(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Engines:
    """Dynamo's engines. With `together`, they are one group for its router; else each has a front end, whose port is in `ports`."""

    def __init__(self, folder, model, capacities, together):
        self.folder = tempfile.mkdtemp(dir=folder, prefix="dynamo-")
        self.processes, self.ports, self.log = [], [], open(os.path.join(self.folder, "log"), "ab")
        for index, capacity in enumerate(capacities):
            space = "engines" if together else f"engine{index}"
            self.start(
                "dynamo.mocker", "--model-path", model, "--model-name", routers.MODEL, "--endpoint", f"dyn://{space}.backend.generate",
                "--block-size", BLOCK, "--num-gpu-blocks-override", CACHE_TOKENS // BLOCK, "--max-num-seqs", 256, "--max-num-batched-tokens", 2048,
                "--speedup-ratio", capacity,
            )  # fmt: skip
            if not together:
                self.ports.append(routers.free_port())
                self.start("dynamo.frontend", "--namespace", space, "--http-host", "127.0.0.1", "--http-port", self.ports[-1])

    def start(self, module, *options):
        command = [PYTHON, "-m", module, *map(str, options)]
        self.processes.append(subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True, env=environment(self.folder)))

    def states(self):
        return []

    def is_alive(self):
        return all(process.poll() is None for process in self.processes)

    def wait_until_ready(self, seconds):
        """Waits until each front end answers; true at once if there is none."""
        end = time.monotonic() + seconds
        for port in self.ports:
            while not routers.is_answered(f"http://127.0.0.1:{port}"):
                if time.monotonic() > end or not self.is_alive():
                    return False
                time.sleep(0.2)
        return True

    def end(self):
        for process in self.processes:
            end_process(process)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class DynamoRouter(routers.Router):
    """Dynamo's router, by events of the engines' caches."""

    name, version = "dynamo", routers.DYNAMO[0].split("==")[1]

    def __init__(self, folder, ports, log, engines):
        self.environment = environment(engines.folder)
        super().__init__(folder, ports, log)

    def command(self):
        options = ["--namespace", "engines", "--router-mode", "kv", "--kv-cache-block-size", str(BLOCK), "--router-min-initial-workers", "4"]
        return [PYTHON, "-m", "dynamo.frontend", *options, "--http-host", "127.0.0.1", "--http-port", str(self.port)]
