"""Recipes: YAML as users mean it, recipes over others, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from parsers import parse_arguments, parse_xtreme_arguments, write_recipes

from hictl_hf.errors import BadInput


def test_an_unknown_setting_is_answered_with_the_one_it_is_most_like(tmp_path: Path) -> None:
    write_recipes(tmp_path, a={"train_file": ["x"], "learning_rates": 1})
    with pytest.raises(BadInput, match=r"a.json: unknown settings: learning_rates; did you mean learning_rate\?"):
        parse_arguments([str(tmp_path / "a.json")])


@pytest.mark.parametrize(("text", "held"), [("42", "int"), ("no", "bool"), ("[x]", "list"), ("", "NoneType")])
def test_a_recipe_that_is_no_object_is_refused(text: str, held: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text, "utf-8")
    with pytest.raises(BadInput, match=f"a.yaml: holds {held}; allowed is an object of settings"):
        parse_arguments([str(tmp_path / "a.yaml")])


def test_of_two_recipes_one_is_based_on_the_other(tmp_path: Path) -> None:
    write_recipes(tmp_path, a={"train_file": ["x"]}, b={"seed": 2})
    with pytest.raises(BadInput, match=f"b.json: a second recipe; .*Name {tmp_path}/a.json in its key based_on"):
        parse_arguments([str(tmp_path / "a.json"), str(tmp_path / "b.json")])


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("\ufeffmodel_name_or_path: x\nlearning_rate: 3e-5\n", "utf-8")
    assert parse_xtreme_arguments([str(tmp_path / "recipe.yaml")]).learning_rate == [3e-5]


def test_a_recipe_overrides_those_it_is_based_on_in_their_order_and_dictionaries_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_recipes(
        tmp_path,
        size={"max_steps": 1, "max_seq_length": 10, "config_overrides": {"word_weight": 1, "lm_weight": 2}},
        data={"based_on": [], "max_steps": 2, "train_file": ["x"]},
    )
    above = {"based_on": ["../size.json", "../data.json"], "max_seq_length": 11, "config_overrides": {"word_weight": 0}}
    write_recipes(tmp_path / "sub", full=above, fuller={"based_on": ["full.json"], "train_file": ["y"]})
    args = parse_arguments([str(tmp_path / "sub/fuller.json"), "--max_seq_length", "12"])
    assert (args.max_steps, args.max_seq_length, args.train_file) == (2, 12, ["y"])
    assert args.config_overrides == {"word_weight": 0, "lm_weight": 2}


def test_words_that_yaml_takes_for_false_are_words_where_words_are_asked_for(tmp_path: Path) -> None:
    words = "train_file: [x]\neval_strategy: no\nguard_languages: [no, de]\nbf16: off\ndo_train: yes\n"
    (tmp_path / "a.yaml").write_text(f"{words}cleaning: {{languages: [no, en], drop_duplicates: no}}\n", "utf-8")
    args = parse_arguments([str(tmp_path / "a.yaml")])
    assert (args.eval_strategy.value, args.guard_languages) == ("no", ["no", "de"])
    assert (args.bf16, args.do_train) == (False, True)
    assert args.cleaning == {"languages": ["no", "en"], "drop_duplicates": False}


def test_a_key_of_yaml_s_merges_is_overridden_by_one_that_is_written(tmp_path: Path) -> None:
    merged = "cleaning: &a {max_characters: 9}\ntrain_file: x\n<<: {cleaning: {<<: *a, max_characters: 7}}\n"
    (tmp_path / "a.yaml").write_text(merged, "utf-8")
    assert parse_arguments([str(tmp_path / "a.yaml")]).cleaning == {"max_characters": 9}


def test_names_that_yaml_takes_for_numbers_or_dates_stay_as_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "train_file: [007, 2026-11-29]\noutput_dir: 2026-11-29\nmodel_revision: 0123456\nmax_steps: 1e3\n", "utf-8"
    )
    args = parse_arguments([str(tmp_path / "a.yaml")])
    assert (args.train_file, args.output_dir) == (["007", "2026-11-29"], "2026-11-29")
    assert (args.model_revision, args.max_steps) == ("0123456", 1000)


def test_numbers_within_a_dictionary_of_yaml_are_those_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "train_file: x\nlr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1E-6}\n"
        "config_overrides: {sentence_temperature: 5e-2, hidden_size: 8, embedding_layer: [1, 2]}\n",
        "utf-8",
    )
    args = parse_arguments([str(tmp_path / "a.yaml")])
    assert args.lr_scheduler_kwargs == {"min_lr": 1e-6}
    assert args.config_overrides == {"sentence_temperature": 0.05, "hidden_size": 8, "embedding_layer": [1, 2]}


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "seed: 1\ntrain_file: [x]\nseed: 2\n"), ("a.json", '{"seed": 1, "train_file": ["x"], "seed": 2}')],
)
def test_a_setting_that_a_recipe_has_twice_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(BadInput, match=f"{name}: not JSON or YAML: seed is given twice"):
        parse_arguments([str(tmp_path / name)])


def test_a_key_that_is_no_name_is_an_unknown_setting(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("~: 1\nsed: 1\n", "utf-8")
    with pytest.raises(BadInput, match="a.yaml: unknown settings: None, sed; --help"):
        parse_arguments([str(tmp_path / "a.yaml")])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["a.json"], "a.json: based_on leads back to this recipe"),
        (["nowhere.json"], "nowhere.json: no such file"),
        ("a.json", "based_on is 'a.json'; allowed is a list"),
    ],
)
def test_a_recipe_that_cannot_be_based_on_others_is_refused(named: Any, message: str, tmp_path: Path) -> None:
    write_recipes(tmp_path, a={"based_on": named, "train_file": ["x"]})
    with pytest.raises(BadInput, match=message):
        parse_arguments([str(tmp_path / "a.json")])
