"""Processes that begin with everything imported: a fork each, instead of seconds of imports.

    with Preloaded() as preloaded:
        done = preloaded.run("scripts/evaluate_model.py", "--help")  # as subprocess.run would say it

The process that forks has imported hf_efficient and done nothing else. What it read from its environment then (the
Hub's address and cache, OMP_NUM_THREADS) holds for all its children; what is read later is theirs. Tests that are
about importing or those variables need a process of their own.
"""

import atexit
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

# Ours as a whole, but none of its parts that must be imported by name: a script that forgets one fails here, too.
IMPORTS = "hf_efficient, accelerate, codecarbon, datasets, matplotlib.pyplot, sklearn.metrics, transformers.trainer"


class Preloaded:
    """Runs scripts and modules as `python` would, in one thread each."""

    def __init__(self, environment: dict[str, str] | None = None, imports: str = IMPORTS):
        environment = {**(environment or os.environ), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, __file__, imports], env=environment, **pipes)

    def run(self, *words, timeout: float = 300, **options) -> subprocess.CompletedProcess:
        """words: a script, -m and a module, or -c and code, and arguments; options: `cwd` and `env`."""
        return self.run_together([(words, options)], timeout)[0]

    def run_ranks(self, count: int, *words, timeout: float = 300) -> list[subprocess.CompletedProcess]:
        """Several at once that find one another by the variables that torchrun sets."""
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
        common = {**os.environ, **sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
        ranks = [dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(count)]
        return self.run_together([(words, {"env": common | rank}) for rank in ranks], timeout)

    def run_together(self, commands: list[tuple], timeout: float) -> list[subprocess.CompletedProcess]:
        with tempfile.TemporaryDirectory() as folder:
            wanted = [
                {
                    "words": [str(word) for word in words],
                    "cwd": str(options.get("cwd", ".")),
                    "env": dict(options.get("env") or os.environ),
                    "files": [f"{folder}/{number}.out", f"{folder}/{number}.err"],
                }
                for number, (words, options) in enumerate(commands)
            ]
            self.process.stdin.write(json.dumps({"timeout": timeout, "commands": wanted}) + "\n")
            self.process.stdin.flush()
            codes = json.loads(self.process.stdout.readline())
            return [
                subprocess.CompletedProcess(each["words"], code, *(Path(file).read_text() for file in each["files"]))
                for each, code in zip(wanted, codes, strict=True)
            ]

    def __enter__(self) -> "Preloaded":
        return self

    def __exit__(self, *error) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve() -> dict:
    """Forks for every command that is asked for; returns in the child alone, with its command."""
    answers, nowhere = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    for line in sys.stdin:
        request, children = json.loads(line), []
        for command in request["commands"]:
            child = os.fork()
            if child == 0:
                answers.close()
                os.dup2(nowhere, 0)
                return command
            children.append(child)
        end = time.monotonic() + request["timeout"]
        print(json.dumps([code_of(child, end) for child in children]), file=answers, flush=True)
    os._exit(0)


def code_of(child: int, end: float) -> int:
    """The exit code, as subprocess gives it; a process that takes too long is killed."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, 9)
        time.sleep(0.01)


def become(command: dict) -> None:
    """What `python words...` does, in this folder and environment."""
    for number, path in enumerate(command["files"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    first, *rest = command["words"]
    sys.orig_argv = [sys.executable, first, *rest]
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


def end_of(command: dict) -> int:
    """The exit code of a child, when all is done that is done at the end of a process."""
    try:
        become(command)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if code and not isinstance(ended.code, int):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    gc.disable()
    exec(f"import {sys.argv[1]}")
    gc.freeze()  # children need not look at what is never freed
    gc.enable()
    os._exit(end_of(serve()))  # at once: to take thousands of modules apart takes as long as to import them
