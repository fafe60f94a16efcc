"""Every test runs in one enclosure, so that whatever a test makes goes with the test run."""

from __future__ import annotations

import signal

import pytest

from cluster import enclosure


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: needs minutes; run by `make soak`")
    # A shell starts what runs in the background with SIGINT ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.collectonly or hasattr(config, "workerinput"):
        return
    try:
        enclosure.enter()
    except enclosure.EnclosureError as error:
        pytest.exit(f"the tests need emulated hosts: {error}", returncode=3)
