"""Code and pages are in plain English: none of the idioms below, which readers stumbled over, comes back.

A legitimate use, such as a quotation, gets a row in `ALLOWED`.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {  # a pattern, a space standing for any white space: what to write
    "at hand": "available",
    "told": "logged, named, shown; distinguished",
    "beside": "next to, compared with, in addition to",
    "whole": "complete, all of, the",
    "parted by": "separated by",
    "(?:is|are|was|were) left to": "(delete it, or say who decides)",
    r"of (?:one's|its|their|our|your|my) own(?!\s\w)": "custom, separate, your",
    "(?:the|paper's|its) letter": "the paper's setting",
    "manieth": "n-th",
    "as ever": "as usual, like the parent",
    "(?:loses?|losing) no step": "fault-tolerant",
    "put (?:it|them) where": "store in",
    "how far [a-z]+ [a-z]+ has come": "position",
    "taken again when": "reused",
    "(?:a|an) run can be": "arguments of a run",
    "of heads and poolers": "about missing heads and poolers",
}
PATTERNS = {
    phrase: re.compile(r"\b(?:" + phrase.replace(" ", r"[\s#>]+") + r")\b", re.IGNORECASE)
    for phrase in INSTEAD  # lines of a comment may end between two words
}
ALLOWED: dict[str, set[str]] = {}  # path: phrases
FOLDERS = ("hictl_hf", "docs", "examples", "benchmarks", "studies", "metrics", "recipes")
ENDINGS = {".py", ".md", ".ipynb", ".yaml", ".sbatch"}
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.*")) if path.suffix in ENDINGS]
FILES += [*sorted(ROOT.glob("run_*.py")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile"))]


def findings(text: str) -> dict[str, list[str]]:
    """By phrase, `line: words; write ...` of each use in a text."""
    return {
        phrase: [
            f"{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}; write: {INSTEAD[phrase]}"
            for found in pattern.finditer(text)
        ]
        for phrase, pattern in PATTERNS.items()
    }


def test_idioms_are_found_at_word_boundaries_and_across_lines() -> None:
    found = findings("a whole\nfolder; what was at\n    # hand, of its\nown. As the paper's letter")
    assert [lines[0].split(";")[0] for lines in found.values() if lines] == [
        "2: 'at\\n    # hand'", "1: 'whole'", "3: 'of its\\nown'", "4: \"paper's letter\"",
    ]  # fmt: skip
    plain = "wholesale, whole_folder, besides, the letters, retold, at handover, the gradient of its own sentences"
    assert not any(findings(plain).values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_english_is_plain(path: Path) -> None:
    found = findings(path.read_text("utf-8"))
    allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), set())
    assert {phrase for phrase in allowed if not found[phrase]} == set(), "allowed, and no longer used"
    assert [line for phrase, lines in found.items() if phrase not in allowed for line in lines] == []
