"""Score any encoder on translations: python examples/score_retrieval.py CHECKPOINT 'tatoeba.deu-eng.{eng,deu}' ...

Each source (see docs/data_formats.md) is one test set, every row of it counts. Prints how often a sentence finds its
translation, in both directions: with the readout that is best over all sets, and with two of the last layer.
"""

import sys

from datasets import Dataset
from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

from hictl_hf import HictlForPreTraining
from hictl_hf.corpus import CorpusReport
from hictl_hf.embedding import Readout, all_readouts
from hictl_hf.evaluation import best_readout, evaluate_retrieval
from hictl_hf.readers import read_rows


def read_pairs(sources: list[str]) -> Dataset:
    rows = [list(row.texts.items()) for source in sources for row in read_rows(source, CorpusReport(strict=True))]
    columns = {"x": [x for (_, x), _ in rows], "y": [y for _, (_, y) in rows]}
    return Dataset.from_dict(columns | {"x_lang": [x for (x, _), _ in rows], "y_lang": [y for _, (y, _) in rows]})


def main(checkpoint: str, *sources: str) -> float:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint)
    if model.config.model_type == "hictl":  # then there is a projection, too
        model = AutoModelForPreTraining.from_pretrained(checkpoint)
    last = model.config.num_hidden_layers
    readouts = all_readouts(range(last + 1), last, projection=isinstance(model, HictlForPreTraining))
    scores = evaluate_retrieval(model, tokenizer, read_pairs(list(sources)), readouts, progress=True)
    for readout in (best_readout(scores), Readout("mean", last), Readout("first token", last)):
        print(f"\n{readout.pooling}, layer {readout.layer}: mean {scores[readout].mean:.1f}")
        for name, (forward, backward) in scores[readout].both_directions.items():
            print(f"  {name:8} {scores[readout].sentences[name]:6}  {forward:5.1f} {backward:5.1f}")
    return scores[best_readout(scores)].mean


if __name__ == "__main__":
    main(*sys.argv[1:])
