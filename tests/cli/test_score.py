"""The command that scores files of translations."""

import hashlib
import json
from pathlib import Path
from urllib.error import URLError

import pytest

from hictl_hf.cli.score import main
from hictl_hf.errors import BadInput
from hictl_hf.translation.moses import MosesTokenizer
from hictl_hf.translation.scores import Score, paired_bootstrap, score_translations

REFERENCES = ["Das E-Mail-Programm kostet 20 €.", "Wir reden über Ärzte und Öl.", "Das ist gut so, sagt man."]
TRANSLATIONS = ["Das E-Mail-Programm kostet 20 €.", "Wir reden von Ärzten und Öl.", "das ist gut so, sagt man."]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, lines in (("ours.txt", TRANSLATIONS), ("gold.de", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(tmp_path / "ours.txt"), str(tmp_path / "gold.de")


def test_files_are_scored_as_lists_are(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = main([*files, "--language", "de", "--metrics", "sacrebleu", "multi-bleu", "chrf"])
    expected = score_translations(TRANSLATIONS, [REFERENCES], "de", ["sacrebleu", "multi-bleu", "chrf"])
    assert found == expected and capsys.readouterr().out.split("\n")[:-1] == list(map(str, expected))


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (["--aggressive"], {"tokenizer": MosesTokenizer("de", aggressive=True)}),
        (["--split_compounds"], {"tokenizer": MosesTokenizer("de", split_compounds=True)}),
        (["--tokenised", "--lowercase", "--strict"], {"tokenizer": "tokenised", "lowercase": True, "strict": True}),
    ],
    ids=["aggressive", "compounds", "tokenised"],
)
def test_flags_of_multi_bleu_reach_it(files: tuple[str, str], flags: list[str], settings: dict[str, object]) -> None:
    (score,) = main([*files, "--language", "de", "--metrics", "multi-bleu", *flags])
    assert [score] == score_translations(TRANSLATIONS, [REFERENCES], "de", ["multi-bleu"], **settings)  # type: ignore[arg-type]
    (plain,) = main([*files, "--language", "de", "--metrics", "multi-bleu"])
    assert isinstance(plain, Score) and isinstance(score, Score) and score.value != plain.value


def test_other_flags_reach_the_scores(files: tuple[str, str], tmp_path: Path) -> None:
    (score,) = main([*files, files[1], "--language", "de", "--metrics", "sacrebleu", "--tokenize", "char"])
    assert score.signature.startswith("nrefs:2|case:mixed|eff:no|tok:char|")
    with pytest.raises(BadInput, match="Correct --moses_dir"):
        main([*files, "--language", "de", "--metrics", "multi-bleu", "--moses_dir", str(tmp_path)])
    with pytest.raises(BadInput, match="unbabel-comet|give sources"):
        main([*files, "--language", "de", "--metrics", "comet"])


def test_what_is_not_utf_8_is_refused_by_its_line(files: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("a\nÄrzte\nc\n".encode("latin-1"))
    with pytest.raises(BadInput, match="latin.txt:2: has invalid UTF-8"):
        main([str(tmp_path / "latin.txt"), files[1], "--language", "de"])


def test_a_baseline_makes_it_a_comparison(files: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "theirs.txt").write_text("x\ny\nz\n", "utf-8")
    found = main([*files, "--language", "de", "--baseline", str(tmp_path / "theirs.txt"), "--metrics", "chrf"])
    assert found == paired_bootstrap(["x", "y", "z"], TRANSLATIONS, [REFERENCES], "de", ["chrf"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--aggressive", "--strict"], "^--aggressive, --strict: has no effect on sacrebleu, chrf; allowed with multi"),
        (["--tokenised"], "^--tokenised: has no effect on sacrebleu, chrf; allowed with multi-bleu. Leave it out"),
        (["--tokenize", "char", "--metrics", "chrf"], "^--tokenize: has no effect on chrf; allowed with sacrebleu"),
        (["--lowercase", "--metrics", "comet"], "^--lowercase: has no effect on comet; allowed with sacrebleu, multi-"),
        (["--tokenised", "--aggressive", "--metrics", "multi-bleu"], "^--aggressive: .* on text that is --tokenised"),
    ],
    ids=["moses", "tokenised", "tokenize", "comet", "both"],
)  # fmt: skip
def test_flags_without_effect_are_refused(files: tuple[str, str], flags: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        main([*files, "--language", "de", *flags])


@pytest.mark.parametrize("flag", ["baseline", "moses_dir", "tokenize", "sources"])
def test_an_empty_name_is_not_left_out(files: tuple[str, str], flag: str) -> None:
    with pytest.raises(BadInput, match=f"--{flag} is empty; allowed is a name or a path"):
        main([*files, "--language", "de", "--metrics", "multi-bleu", "sacrebleu", f"--{flag}", ""])


def test_sources_that_no_metric_reads_are_named(files: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    main([*files, "--language", "de", "--sources", files[1]])
    assert "gold.de: --sources are read by comet alone" in caplog.text


def test_a_tokenizer_whose_model_cannot_be_downloaded_is_named(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(url: str, *rest: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", unreachable)
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(BadInput, match="downloads a model for the tokenizer flores200, which fails here .*such as 13a"):
        main([*files, "--language", "de", "--tokenize", "flores200"])


@pytest.mark.parametrize("record", ['{"recipe": ', "[]", "{}", '{"recipe": "x", "romanian": 1}', "\xff"])
def test_a_damaged_record_of_the_preparation_is_named(files: tuple[str, str], tmp_path: Path, record: str) -> None:
    (tmp_path / "preparation.json").write_bytes(record.encode("latin-1"))
    with pytest.raises(BadInput, match="preparation.json: cannot be read .* remove this file to use your own"):
        main([*files, "--language", "de"])


def test_a_table_is_refused(files: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match="predictions.jsonl: is a table by its name; allowed are files of one sentence"):
        main(["predictions.jsonl", files[1], "--language", "de"])


def test_files_of_unequal_length_are_refused(files: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "short.de").write_text("x\n", "utf-8")
    with pytest.raises(
        BadInput, match="ours.txt has 3 lines, .*short.de has 1 lines; allowed are files of equal length"
    ):
        main([files[0], str(tmp_path / "short.de"), "--language", "de"])


def test_prepared_references_are_in_the_signature(files: tuple[str, str], tmp_path: Path) -> None:
    digest = hashlib.sha256(Path(files[1]).read_bytes()).hexdigest()
    record = {"recipe": "x", "romanian": "keep", "other_counts": ["train has 3 lines"], "sha256": {"gold.de": digest}}
    (tmp_path / "preparation.json").write_text(json.dumps(record), "utf-8")
    (score,) = main([*files, "--language", "de", "--metrics", "chrf"])
    assert score.signature.endswith(f"|data:x gold {digest[:8]}|override:train has 3 lines")


@pytest.mark.parametrize(
    ("language", "fix"),
    [
        ("cn", "Write zh"),
        ("zho", "Write zh"),
        ("kr-KR", "Write ko"),
        ("Chinese", "zh is Chinese"),
    ],
)
def test_what_is_no_language_is_refused(files: tuple[str, str], language: str, fix: str) -> None:
    with pytest.raises(BadInput, match=f"the language is '{language}'; allowed are codes of ISO 639.*{fix}"):
        main([*files, "--language", language])


@pytest.mark.parametrize("language", ["zh", "zh-Hant-TW", "zh_CN"])
def test_chinese_is_chinese_wherever_it_is_from(files: tuple[str, str], language: str) -> None:
    (score,) = main([*files, "--language", language, "--metrics", "sacrebleu"])
    assert "|tok:zh|" in score.signature
