"""The paper's figure: sets and languages as asked for, ranks worked by hand, one command for two checkpoints."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pictures import is_picture
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.cli import tsne
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.retrieval.sentence_sets import mean_rank, place, read_sets

LANGUAGES = ("en", "fr", "de", "ru", "es")


@pytest.fixture
def parallel(tmp_path: Path) -> str:
    """Sixty sentences in five languages."""
    for language in LANGUAGES:
        lines = [f"{language} {number} {number % 7}" for number in range(60)]
        (tmp_path / f"news.{language}").write_text("\n".join(lines) + "\n", "utf-8")
    return str(tmp_path / f"news.{{{','.join(LANGUAGES)}}}")


def test_a_set_counts_the_sentences_of_all_languages(parallel: str) -> None:
    """Ten sets of 25 in five languages are five sentences each, the first fifty."""
    texts = read_sets([parallel], 10, 25)
    assert tuple(texts) == LANGUAGES and {len(each) for each in texts.values()} == {50}
    assert texts["ru"][49] == "ru 49 0" and read_sets([parallel, parallel], 10, 50)["en"][60] == "en 0 0"


@pytest.mark.parametrize(
    ("sets", "per_set", "message"),
    [
        (10, 100, "has 60 records; 10 sets of 100 sentences in 5 languages need 10 x 20"),
        (11, 25, "sets is 11; allowed are 2 to 10"),
        (10, 4, "at least 5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(sets: int, per_set: int, message: str, parallel: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_sets([parallel], sets, per_set)


def test_records_in_other_languages_are_refused(parallel: str, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"en": "a", "fr": "b"}\n', "utf-8")
    with pytest.raises(
        BadInput, match="more.jsonl:1: has en, fr; allowed are the languages of the first record, en, fr, de"
    ):
        read_sets([parallel, str(tmp_path / "more.jsonl")], 10, 25)


def test_pairs_of_a_low_score_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "scored.tsv"
    path.write_text("0.1\tz\tz\n0.9\ta\tb\n0.1\tz\tz\n0.9\tc\td\n", "utf-8")
    assert read_sets([f"0.5+en+de:{path}"], 2, 2) == {"en": ["a", "c"], "de": ["b", "d"]}


def test_ranks_worked_by_hand() -> None:
    """The second and third are exchanged in de: their own score is 0.8 where another scores 1."""
    x = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0]])
    assert mean_rank({"en": x, "de": x}) == 1
    assert mean_rank({"en": x, "de": x[[0, 2, 1, 3]]}) == pytest.approx((1 + 2 + 2 + 1) / 4)
    assert mean_rank({"en": x, "de": x[[1, 0, 2, 3]]}, among=2) == pytest.approx((2 + 2 + 1 + 1) / 4)


def test_equal_vectors_have_no_map() -> None:
    with pytest.raises(BadInput, match="same vector"):
        place({"en": np.ones((4, 2)), "de": np.ones((4, 2))}, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--output", "a.xyz"], r"output is a.xyz; allowed are names that end in .*\.pdf, .*\.png"),
        (["--output", "a"], "output is a; allowed are names that end in"),
        (["--output", "a.png", "--seed", "-1"], "seed is -1; allowed are 0 to 4294967295"),
        (["--output", "a.png", "--pooling", "max"], "the pooling is 'max'; allowed are cls, mean"),
        (["--output", "a.png"], "./absent: does not exist"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(settings: list[str], message: str, parallel: str) -> None:
    with pytest.raises(BadInput, match=message):
        tsne.main([".", "./absent", "--sentences", parallel, *settings])


def test_one_command_draws_two_checkpoints_with_a_number_for_each(
    parallel: str, tmp_path: Path, model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folders = [str(tmp_path / name) for name in ("one", "two")]
    for folder, seed in zip(folders, (0, 1)):
        for part in (model_for_text(seed=seed), tokenizer):
            part.save_pretrained(folder)
    picture, link = tmp_path / "pictures/tsne.png", tmp_path / "link.png"
    link.symlink_to(picture)
    maps = tsne.main([*folders, "--sentences", parallel, "--output", str(link), "--per_set", "25"])
    assert is_picture(picture) and link.is_symlink() and [drawn.name for drawn in maps] == folders
    assert all(drawn.places["es"].shape == (50, 2) and 1 <= drawn.mean_rank <= 50 for drawn in maps)
    assert not np.array_equal(maps[0].places["es"], maps[1].places["es"])
    assert f"{maps[1].mean_rank:.2f}" in capsys.readouterr().out
    read = ["--pooling", "mean", "--layer", "1"]
    others = tsne.main([*folders, "--sentences", parallel, "--output", str(link), "--per_set", "25", *read])
    for folder, drawn in zip(folders, others):
        texts = read_sets([parallel], 10, 25)
        encoder = load_encoder(folder)
        vectors = {name: embed_sentences(*encoder, each, Pooling("mean", 1)) for name, each in texts.items()}
        assert drawn.mean_rank == mean_rank(vectors) and np.array_equal(drawn.places["es"], place(vectors, 42)["es"])
    assert not np.array_equal(others[0].places["es"], maps[0].places["es"])
