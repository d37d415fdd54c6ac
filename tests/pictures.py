"""What a picture is; tests that import this are skipped without matplotlib."""

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
