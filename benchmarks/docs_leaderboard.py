"""The rows of the app's leaderboard, from the records of `hf-efficient compare` in docs/results/recipes."""

import json
from pathlib import Path

from benchmarks.record import ROOT
from hf_efficient.app.leaderboard import FILE

RECIPES = ROOT / "docs/results/recipes"


def rows(folder: Path = RECIPES) -> list[dict]:
    """A row for each arm that was scored on a test split."""
    found = []
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        for name, arm in record["arms"].items():
            if arm.get("scores"):
                scores = list(arm["scores"].values())
                row = {"data": file.stem, "budget": f"{record['budget']} of training", "name": name}
                row |= {"metric": record["metric"], "value": sum(scores) / len(scores), "seeds": len(scores)}
                row |= {key: arm[key] for key in ("joules", "seconds") if key in arm}
                found.append({**row, "command": command(arm)})
    return found


def command(arm: dict) -> str | None:
    """What trains it again; None where the config has changed since."""
    words = ["hf-efficient train", *arm["settings"], "--max_steps", str(arm["steps"])]
    return " ".join(words) if "config_sha256" in arm else None


def text() -> str:
    return json.dumps(rows(), indent=2) + "\n"


def is_current() -> bool:
    return FILE.is_file() and FILE.read_text(encoding="utf-8") == text()


def write() -> None:
    FILE.write_text(text(), encoding="utf-8")
