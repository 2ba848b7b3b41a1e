"""Shared by all tests: the CPU platform, golden texts."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports JAX

import hypothesis
import pytest

# Reproducible, and without deadlines: the first call of a JAX function compiles it.
hypothesis.settings.register_profile(
    "tkcc", deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("tkcc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts beside the tests"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(text, name)`: text must equal `golden/<name>` beside the test."""
    folder = request.path.parent / "golden"

    def compare(text: str, name: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}; write it with --update-golden"
        assert text == path.read_text(encoding="utf-8"), "refresh it with --update-golden"

    return compare
