"""What all tests of the command line share: a data directory that is not the user's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Results are kept beside the tests, and from one test to the next, as they are from run to run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADPROOF_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield
