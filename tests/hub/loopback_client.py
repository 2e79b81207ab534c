"""The real client, in a process of its own: what it reads from the environment, it reads when it is imported."""

import itertools
import json
import os
import queue
import subprocess
import textwrap
import threading
from pathlib import Path

WORKER = Path(__file__).with_name("loopback_worker.py")
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class ClientError(Exception):
    """What the code in the other process raised."""

    def __init__(self, answer: dict):
        super().__init__(f"{answer['error']}: {answer['message']}")
        self.kind, self.message, self.traceback = answer["error"], answer["message"], answer["traceback"]


def environment(hub, home: Path, token: str | None = None, **variables: str) -> dict[str, str]:
    """Variables of a process that knows this Hub only."""
    found = {name: os.environ[name] for name in KEPT if name in os.environ}
    found |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    found |= {"HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    found |= {"HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(WORKER.parents[2])}
    return found | ({"HF_TOKEN": token} if token else {}) | variables


class Client:
    """A process that runs one piece of code after the other; names stay from one to the next."""

    def __init__(self, hub, home: Path, token: str | None = None, **variables: str):
        home.mkdir(parents=True, exist_ok=True)
        self.log = (home / "stderr.txt").open("w+")
        self.process = subprocess.Popen(
            [hub.python, str(WORKER)],
            env=environment(hub, home, token, **variables),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.answers: queue.Queue = queue.Queue()
        self.numbers = itertools.count()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def start(self, code: str) -> int:
        number = next(self.numbers)
        self.process.stdin.write(json.dumps({"number": number, "code": textwrap.dedent(code)}) + "\n")
        self.process.stdin.flush()
        return number

    def run(self, code: str, timeout: float = 180):
        """`result` as the code leaves it; ClientError if it raises."""
        number, answer = self.start(code), {}
        while answer.get("number") != number:  # an earlier one may have come too late for whoever asked
            line = self.answers.get(timeout=timeout)
            assert line, f"the process ended:\n{self.stderr()}"
            answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer)
        return answer["result"]

    def stderr(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error) -> None:
        self.kill()
        self.log.close()
