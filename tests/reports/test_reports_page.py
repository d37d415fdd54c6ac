"""A report of sections says the same on its page and in Markdown, and trusts no text."""

from base64 import b64encode
from pathlib import Path

from recorded_run import ATTACK
from test_xtreme_report import Tags

from hictl_hf.reports.page import Block, Listing, Picture, write_sections
from hictl_hf.reports.tables import Cell, Table

PIXEL = b"\x89PNG a picture"


def test_a_block_called_like_its_section_is_open_and_others_are_folded_worked_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    table = Table("Scores", "In %.", [Cell("run"), Cell("BLEU")], {"": [[Cell("x"), Cell("1.0", ("a note",))]]})
    blocks: list[Block] = [table, Picture("Curve", "by * step", tmp_path / "a.png"), Listing("Command", "run ```x```")]
    page = write_sections(tmp_path, "A run", [("1.0", "BLEU")], {"Scores": blocks}, "the foot", "p { top: 0 }")
    assert page == tmp_path / "report.html"
    text = page.read_text("utf-8")
    body = text[text.index("<body>") :]
    assert body.startswith(
        '<body>\n<main>\n<h1>A run</h1>\n<div class="facts"><div><b>1.0</b>BLEU</div></div>\n<section>'
    )
    opened, _, folded = body.partition("<details>")
    assert "<h2>Scores</h2><p>In %.</p>" in opened and "<sup>1</sup>" in opened and "<img" not in opened
    assert f'src="data:image/png;base64,{b64encode(PIXEL).decode()}"><figcaption>by * step</figcaption>' in folded
    assert "<summary>Command</summary><pre>run ```x```</pre>" in folded and "<footer>the foot</footer>" in folded
    assert text.index("p { top: 0 }") < text.index("</style>")
    assert (tmp_path / "report.md").read_text("utf-8").splitlines() == [
        *("# A run", "", "## Scores", "", "| run | BLEU |", "|---|---:|", "| x | 1.0 [1] |", "", "In %."),
        *("", "[1] a note", "", "### Curve", "", "![Curve](a.png)", "", r"by \* step", ""),
        *("### Command", "", "````", "run ```x```", "````"),
    ]


def test_text_never_becomes_markup(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    table = Table(ATTACK, ATTACK, [Cell(ATTACK)], {ATTACK: [[Cell(ATTACK, (ATTACK,), strong=True)]]})
    blocks: list[Block] = [table, Picture("b" + ATTACK, ATTACK, tmp_path / "a.png"), Listing(f"c{ATTACK}", ATTACK)]
    text = write_sections(tmp_path, ATTACK, [(ATTACK, ATTACK)], {ATTACK: blocks}, ATTACK).read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and "script" not in tags.seen and text.count("&lt;script&gt;alert") == 16
    plain = (tmp_path / "report.md").read_text("utf-8").partition("```")[0]
    assert "<script>" not in plain and plain.count("&lt;script&gt;") == 11


def test_only_counts_are_kept_on_one_line(tmp_path: Path) -> None:
    row = [Cell("12 of 40"), Cell("a picture of a dog")]
    page = write_sections(tmp_path, "x", [], {"T": [Table("T", "", row, {"": [row]})]}, "x").read_text("utf-8")
    assert "12&nbsp;of&nbsp;40" in page and "a picture of a dog" in page
