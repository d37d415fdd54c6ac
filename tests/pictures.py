"""Check that a file is a picture."""

from pathlib import Path


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
