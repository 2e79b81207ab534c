"""Processes that begin with their imports done: a fork each, instead of seconds of imports.

    with Preloaded(folder, "hf_efficient, datasets") as preloaded:
        done = preloaded.run("scripts/evaluate_model.py", "--help")  # as subprocess.run would say it
        subprocess.Popen([preloaded.python, "-m", "hf_efficient", "serve", "model"])

`preloaded.python` is a program that takes python's arguments, input and signals. It asks a server, which has imported
what is named and done nothing else, for a fork with its own folder, environment and files, and ends as that ends. The
server imports when it is asked for the first time. What was read from its environment then (the Hub's address and
cache, OMP_NUM_THREADS) holds for all forks; what is read later is theirs. Tests about importing or about those
variables need a process of their own, or a server that has not imported what reads them.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

PYTHON = """#!{interpreter} -IS
import json, os, signal, socket, sys

server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"."], [0, 1, 2])
command = {{"words": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
server.sendall(json.dumps(command).encode() + b"\\n")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
code = int(server.recv(100) or 1)
if code < 0:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class Preloaded:
    """Runs scripts and modules as `python` would, in one thread each.

    Args:
        folder: a new one, where the program is put.
        imports: what the server imports.
        environment: of the server; this process's by default.
        interpreter: what runs the server: another `Preloaded.python` has imported much of it already.
        lifetime: the process that the server serves until its end.
        descend: whether `sys.executable` of the forks is the program too, so that their children are forks as well.
    """

    def __init__(
        self,
        folder: Path,
        imports: str,
        environment: dict[str, str] | None = None,
        interpreter: str = sys.executable,
        lifetime: int | None = None,
        descend: bool = False,
    ):
        address, program = str(folder / "socket"), folder / "python"
        folder.mkdir(parents=True)
        options = {"imports": imports, "lifetime": lifetime or os.getpid()}
        with socket.socket(socket.AF_UNIX) as listening, (folder / "log").open("w") as log:
            listening.bind(address)
            listening.listen(100)
            self.server = subprocess.Popen(
                [interpreter, __file__, json.dumps({**options, "executable": str(program) if descend else None})],
                env={**(os.environ if environment is None else environment), "OMP_NUM_THREADS": "1"},
                stdin=listening,
                stdout=log,
                stderr=log,
            )
        program.write_text(PYTHON.format(interpreter=os.path.realpath(sys.executable), address=address))
        program.chmod(0o755)
        self.python = str(program)

    @classmethod
    def at(cls, folder: Path) -> "Preloaded":
        """One that another process has made, and ends."""
        found = cls.__new__(cls)
        found.server, found.python = None, str(folder / "python")
        return found

    def run(self, *words, timeout: float = 300, **options) -> subprocess.CompletedProcess:
        """words: a script, -m and a module, or -c and code, and arguments; options: those of subprocess.run."""
        return subprocess.run(
            [self.python, *map(str, words)], capture_output=True, text=True, timeout=timeout, **options
        )

    def run_ranks(self, count: int, *words, timeout: float = 300) -> list[subprocess.CompletedProcess]:
        """Several at once that find one another by the variables that torchrun sets."""
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
        common = {**os.environ, **sizes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
        found: list = [None] * count

        def run(rank: int) -> None:
            variables = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            found[rank] = self.run(*words, timeout=timeout, env=common | variables)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def __enter__(self) -> "Preloaded":
        return self

    def __exit__(self, *error) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.wait()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# The server


def serve(imports: str, lifetime: int, executable: str | None) -> int:
    """Forks for every connection; returns in the forks alone, with their exit code."""
    listening = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    imported = False
    while is_alive(lifetime):
        if not select.select([listening], [], [], 1)[0]:
            continue
        connection, _ = listening.accept()
        if not imported:
            for name in imports.split(", "):
                with contextlib.suppress(ImportError):  # which whoever needs it will meet again
                    importlib.import_module(name)
            gc.collect()
            gc.freeze()  # forks need not look at what is never freed
            gc.enable()
            imported = True
        if os.fork() == 0:
            listening.close()
            if os.fork() == 0:  # the process between is nobody's child, so that nobody needs to wait for it
                sys.path[1:] = [path for path in sys.path[1:] if path not in given]
                return supervise(connection, executable)
            os._exit(0)
        os.wait()
        connection.close()
    os._exit(0)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def supervise(connection: socket.socket, executable: str | None) -> int:
    """Forks once more, passes signals on, and tells how it ended; returns in the fork alone, with its exit code."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    command = json.loads(connection.makefile().readline())
    child = os.fork()
    if child == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        return code_of(command, executable)
    for file in files:
        os.close(file)

    def pass_signals_on() -> None:
        while numbers := connection.recv(100):
            for number in numbers:
                os.kill(child, number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # as whoever asked for it was

    threading.Thread(target=pass_signals_on, daemon=True).start()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def code_of(command: dict, executable: str | None) -> int:
    """The exit code, when all is done that is done at the end of a process."""
    try:
        become(executable, **command)
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


def become(executable: str | None, words: list[str], cwd: str, env: dict[str, str]) -> None:
    """What `python words...` does, in this folder and environment."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.executable = executable or sys.executable
    sys.orig_argv = [sys.executable, *words]
    if words[0] == "-u":
        sys.stdout.reconfigure(line_buffering=True)
        words = words[1:]
    sys.path[1:1] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    first, *rest = words
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    gc.disable()
    exit_code = serve(**json.loads(sys.argv[1]))
    os._exit(exit_code)  # at once: to take thousands of modules apart takes as long as to import them
