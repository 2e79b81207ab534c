"""A loopback Hub for all tests, one process with the real client that speaks to it, and one that starts commands."""

import itertools
from pathlib import Path

import pytest
from hub_cases import write_model
from loopback import Hub
from loopback_client import Client, environment
from preloaded import Preloaded

numbers = itertools.count()


@pytest.fixture(scope="session")
def running_hub(tmp_path_factory, bare):
    with Hub(tmp_path_factory.mktemp("hub")) as hub:
        hub.alice, hub.bob = hub.store.token("alice"), hub.store.token("bob")
        hub.reader = hub.store.token("alice", role="read")
        hub.python = bare.python  # of processes that read the Hub's address from their environment
        yield hub


@pytest.fixture
def hub(running_hub):
    running_hub.mend()
    running_hub.page_size, running_hub.multipart_over = 1000, 5 * 2**20
    return running_hub


@pytest.fixture(scope="session")
def running_client(running_hub, tmp_path_factory):
    with Client(running_hub, tmp_path_factory.mktemp("home"), running_hub.alice) as client:
        client.run("from hf_efficient import hub")
        yield client


@pytest.fixture
def client(running_client, hub):
    return running_client


@pytest.fixture(scope="session")
def preloaded_client(running_hub, tmp_path_factory):
    """Starts commands that speak to this Hub."""
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("client") / "preloaded"
    with Preloaded(folder, "hf_efficient", environment(running_hub, home), running_hub.python) as preloaded:
        yield preloaded


@pytest.fixture
def repo():
    """The name of a repository that is not there yet."""
    return f"alice/model-{next(numbers)}"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small model, as far as a Hub can tell."""
    return write_model(tmp_path / "model", seed=next(numbers))
