"""One child process for all TensorFlow tests: imports are paid once, Paddle never meets them."""

from __future__ import annotations

import pytest

from tests.child import Child
from tests.frontends.tensorflow import models
from tests.frontends.tensorflow.counts import read


def pytest_collection_modifyitems(items):
    for item in items:
        if "frontends/tensorflow" in item.nodeid:
            item.add_marker(pytest.mark.tensorflow)


@pytest.fixture(scope="session")
def child():
    """Call a function in the child: `child(function, *arguments)`."""
    made = Child()
    yield made
    made.close()


@pytest.fixture(scope="session")
def files(child, tmp_path_factory):
    """Return the paths of a model of `models`, by kind of file; each is written once."""
    written = {}

    def paths(name, kinds=tuple(models.KINDS)):
        known = written.setdefault(name, {})
        if missing := tuple(kind for kind in kinds if kind not in known):
            known |= child(models.save, name, tmp_path_factory.mktemp(name), missing)
        return {kind: known[kind] for kind in kinds}

    return paths


@pytest.fixture(scope="session")
def converted(child, files):
    """Return the raw graph of a model, given its name and kind of file."""

    def graph(name, kind="savedmodel", shapes=None):
        return read(child(models.convert, files(name, (kind,))[kind], shapes))

    return graph
