"""The scripts as a user runs them: what they print, and one line instead of a traceback."""

import re
import shutil
import time
from pathlib import Path

import pytest
from loopback_client import environment

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def run(hub, bare, preloaded_client, tmp_path):
    """A script in a process that has imported everything, or nothing if asked or if imports read its variables."""

    def run(script, *arguments, token=None, new=False, **variables):
        words = [str(SCRIPTS / script), *map(str, arguments)]
        process = {"env": environment(hub, tmp_path / "home", token, **variables), "timeout": 300}
        return (bare if new or variables else preloaded_client).run(*words, **process)

    return run


def complaint(finished, *tokens):
    """What a failed script says: one line, no traceback, no token."""
    assert finished.returncode == 1, finished.stdout + finished.stderr
    lines = [line for line in finished.stderr.splitlines() if "Trying again in" not in line]
    assert len(lines) == 1 and "Traceback" not in finished.stderr, finished.stderr
    assert not any(token in finished.stderr + finished.stdout for token in tokens)
    return lines[0]


def test_push_then_pull(run, hub, repo, folder, tmp_path):
    shown = run("push_to_hub.py", folder, repo, "--private", "--dry-run", token=hub.alice)
    assert shown.returncode == 0 and "200,000  model.safetensors" in shown.stdout and "dry run" in shown.stdout
    assert not hub.writes()
    options = ("--private", "--branch", "dev", "--tag", "v1", "--message", "My model")
    pushed = run("push_to_hub.py", folder, repo, *options, token=hub.alice, new=True)
    assert pushed.returncode == 0, pushed.stderr
    commit = hub.head(repo, "v1")
    assert f"commit {commit.oid} on dev, checksums compared: {hub.url}/{repo}/tree/{commit.oid}" in pushed.stdout
    assert commit.title == "My model" and hub.store.repositories["model", repo].private
    again = run("push_to_hub.py", folder, repo, *options, token=hub.alice)
    assert f"nothing to do, still commit {commit.oid}" in again.stdout
    pulled = run("pull_from_hub.py", repo, "--revision", "v1", "--to", tmp_path / "here", token=hub.alice)
    assert pulled.returncode == 0 and pulled.stdout.strip() == str(tmp_path / "here")
    assert (tmp_path / "here/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert hub.leaks(hub.alice) == []


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_06_a_command_ends_within_two_seconds_of_its_deadline(run, hub, repo, tmp_path, kind):
    """Python waits for threads; those of the client's downloads had timeouts and retries of their own."""
    hub.plant(repo, {f"part-{i:02}.safetensors": bytes([i]) * 100_000 for i in range(12)})
    hub.fail(kind, "GET", "/blob/", times=999)
    run("pull_from_hub.py", "--help")  # now all is imported
    start = time.monotonic()
    finished = run("pull_from_hub.py", repo, "--to", tmp_path / "here", "--timeout", "3")
    assert finished.returncode == 1 and time.monotonic() - start < 6  # a second to start
    *_, said = finished.stderr.splitlines()  # the client tells of its own attempts
    assert "not done within 3 s (--timeout, in training --hub_timeout, allows for more); the last problem: " in said


def test_11_no_token(run, hub, repo, folder):
    assert "there is no token. Make one with write access" in complaint(run("push_to_hub.py", folder, repo))
    assert not hub.requests
    hub.plant(repo, {"config.json": b"{}"}, private=True)
    assert "no such repository, or it is private" in complaint(run("pull_from_hub.py", repo))


def test_11_a_wrong_token(run, hub, repo, folder):
    wrong = "hf_" + "x" * 34
    said = complaint(run("push_to_hub.py", folder, repo, token=wrong), wrong)
    assert "the Hub does not accept your token" in said
    hub.plant(repo, {"config.json": b"{}"}, private=True)
    assert "the Hub does not accept your token" in complaint(run("pull_from_hub.py", repo, token=wrong), wrong)


def test_11_a_token_that_may_only_read(run, hub, repo, folder):
    for _ in ("not there yet", "there"):
        said = complaint(run("push_to_hub.py", folder, repo, token=hub.reader), hub.reader)
        assert "your token may not do this" in said and "write access" in said
        hub.plant(repo, {"config.json": b"{}"}, private=True)
    assert run("pull_from_hub.py", repo, token=hub.reader).returncode == 0


def test_11_somebody_elses_repository(run, hub, repo, folder):
    hub.plant(repo, {"config.json": b"{}"}, private=True)
    assert "no such repository, or it is private" in complaint(run("pull_from_hub.py", repo, token=hub.bob), hub.bob)
    assert "your token may not do this" in complaint(run("push_to_hub.py", folder, repo, token=hub.bob), hub.bob)


def test_what_is_not_there(run, hub, repo, folder):
    assert "there is no folder nowhere" in complaint(run("push_to_hub.py", "nowhere", repo, token=hub.alice))
    assert "there is no such repository" in complaint(run("pull_from_hub.py", "alice/none", token=hub.alice))
    hub.plant(repo, {"config.json": b"{}"})
    said = complaint(run("pull_from_hub.py", repo, "--revision", "v9", token=hub.alice))
    assert "at v9: the repository has no such revision" in said
    assert "Repo id must" in complaint(run("push_to_hub.py", folder, "a/b/c", token=hub.alice))


def test_offline_and_unreachable(run, hub, repo, folder):
    said = complaint(run("push_to_hub.py", folder, repo, token=hub.alice, HF_HUB_OFFLINE="1"))
    assert "HF_HUB_OFFLINE is set" in said
    away = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    said = complaint(run("push_to_hub.py", folder, repo, "--timeout", 1, token=hub.alice, **away), hub.alice)
    assert "http://127.0.0.1:9 can't be reached" in said
    dry = run("push_to_hub.py", folder, repo, "--dry-run", "--timeout", 1, **away)
    assert dry.returncode == 0 and "model.safetensors" in dry.stdout and "not compared" in dry.stdout


def test_the_commands_of_the_docs(hub, preloaded_client, folder, tmp_path):
    """Those of docs/hub.md, as they stand there, one after the other."""
    page = (ROOT / "docs" / "hub.md").read_text(encoding="utf-8")
    commands = re.findall(r"^hf-efficient (?:push|pull) .*", page, flags=re.MULTILINE)
    assert {command.split()[1] for command in commands} == {"push", "pull"}
    token = hub.store.token("me")
    variables = environment(hub, tmp_path / "home", token)
    for command in commands:
        words = command.split("#")[0].split()[1:]
        if words[0] == "push":
            shutil.copytree(folder, tmp_path / words[1], dirs_exist_ok=True)
        finished = preloaded_client.run("-m", "hf_efficient", *words, cwd=tmp_path, env=variables, timeout=120)
        assert finished.returncode == 0, f"{command}\n{finished.stderr}"
    (repository,) = [r for r in hub.store.repositories.values() if r.owner == "me"]
    assert repository.private and hub.leaks(token) == []
    for file in folder.iterdir():
        assert Path(finished.stdout.strip(), file.name).read_bytes() == file.read_bytes()
