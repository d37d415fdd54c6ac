"""Score any encoder on translations: python examples/score_retrieval.py CHECKPOINT 'tatoeba.deu-eng.{eng,deu}' ...

Each source (docs/data_formats.md) is a test set, and every row counts. Prints how often a sentence finds its
translation, in both directions: at the model's pooling (plain XLM-R: the mean of the last layer), which is the
score; at the best pooling on these sentences, which is optimistic; and at two poolings of the last layer.
"""

import sys

from datasets import Dataset
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

from hictl_hf.data import CorpusReport, read_rows
from hictl_hf.embedding import Pooling, all_poolings, own_pooling
from hictl_hf.embedding.pooling import projection_of
from hictl_hf.embedding.sentence_transformers_settings import apply_settings, read_sentence_transformers_files
from hictl_hf.errors import BadInput, as_bad_input, run
from hictl_hf.retrieval import best_pooling, evaluate_retrieval


def read_pairs(sources: list[str]) -> Dataset:
    read = [row for source in sources for row in read_rows(source, CorpusReport(strict=True))]
    if alone := [row.origin for row in read if len(row.texts) == 1]:
        raise BadInput(f"{alone[0]}: has one text; allowed are two, a sentence and its translation. Leave the row out.")
    rows = [list(row.texts.items()) for row in read]
    columns = {"x": [x for (_, x), _ in rows], "y": [y for _, (_, y) in rows]}
    return Dataset.from_dict(columns | {"x_lang": [x for (x, _), _ in rows], "y_lang": [y for _, (y, _) in rows]})


def main(checkpoint: str, *sources: str) -> float:
    """Return the mean of both directions at the model's pooling."""
    with as_bad_input(checkpoint, "a folder or Hub name of an encoder", "Check the name."):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        model = AutoModel.from_pretrained(checkpoint)
        if model.config.model_type == "hictl":  # with the projection
            model = AutoModelForPreTraining.from_pretrained(checkpoint)
        if settings := read_sentence_transformers_files(checkpoint):
            apply_settings(checkpoint, model, tokenizer, settings)
    own, last = own_pooling(model.config), model.config.num_hidden_layers
    poolings = [own, *all_poolings(range(last + 1), last, projection=projection_of(model) is not None)]
    pairs = read_pairs(list(sources))
    scores = evaluate_retrieval(model, tokenizer, pairs, list(dict.fromkeys(poolings)), progress=True)
    shown = [("the model's own pooling", own), ("best on these sentences (optimistic)", best_pooling(scores))]
    shown += [("last layer", Pooling(pooling, last)) for pooling in ("mean", "cls")]
    for name, pooling in shown:
        print(f"\n{name}: {pooling.mode}, layer {pooling.layer}: mean {scores[pooling].mean:.1f}")
        for language, (forward, backward) in scores[pooling].both_directions.items():
            print(f"  {language:8} {scores[pooling].sentences[language]:6}  {forward:5.1f} {backward:5.1f}")
    return scores[own].mean


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    run(lambda argv: main(*argv))
