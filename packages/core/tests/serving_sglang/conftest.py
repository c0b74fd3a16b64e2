"""The environment with a real SGLang, where there is one."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def sglang_python():
    """Path of a Python that has SGLang; tests that ask for it are marked `sglang`."""
    found = os.environ.get("REROLL_SGLANG_PYTHON")
    if found and Path(found).exists():
        return found
    reason = f"REROLL_SGLANG_PYTHON={found} is no Python; `hatch run sglang:test` makes an environment and sets it"
    if os.environ.get("REROLL_REQUIRE_SGLANG") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
