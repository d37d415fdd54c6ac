"""Compare embedding with sentence-transformers' `encode` on the same encoder; measure the error of bf16 and int8.

Both take turns on all sentences, mean of the last layer, tokenizing included, the model loaded. Exactness: the
largest difference to the baseline in fp32, the mean cosine to fp32, and Tatoeba accuracy. Usage:

    python benchmarks/embedding.py --quick
    python benchmarks/embedding.py --model path/to/encoder --pairs 'corpus.{en,de}' --tatoeba path/to/tatoeba/v1

Without --model the weights are random, and exactness means nothing.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from measure import Seconds, cpu_row, seconds_of, take_turns, tell
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling as PoolingModule
from sentence_transformers.models import Transformer
from tqdm import tqdm
from transformers import XLMRobertaConfig, XLMRobertaModel
from workload import SEED, TRAINED_VOCABULARY, VOCABULARY, read_pairs

from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.embedding.encoder import Precision, embed_sentences, load_encoder
from hictl_hf.embedding.mteb_evaluation import local_pairs
from hictl_hf.embedding.pooling import LONGEST, Pooling
from hictl_hf.files import write_json
from hictl_hf.retrieval.bitext import retrieval_accuracy

BASELINE = "sentence_transformers"
PRECISIONS = get_args(Precision)
SIZES = {"num_hidden_layers": 12, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, and write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 sentences, one round that counts")
    parser.add_argument("--sentences", type=int, default=10_000, help="[10000]")
    parser.add_argument("--rounds", type=int, default=3, help="that count [3]")
    parser.add_argument("--model", metavar="FOLDER", help="a HiCTL or XLM-R encoder [12 × 384, random]")
    parser.add_argument("--pairs", metavar="FILE", help="sentence pairs, any source of run_pretraining.py [demo's]")
    parser.add_argument("--tatoeba", metavar="FOLDER", help="of LASER, tatoeba.deu-eng.deu and .eng [not scored]")
    parser.add_argument("--output", default="benchmarks/embedding.json", help="[benchmarks/embedding.json]")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    sentences = list(dict.fromkeys(text for pair in read_pairs(arguments.pairs) for text in pair))
    number, rounds = (200, 1) if arguments.quick else (arguments.sentences, arguments.rounds)
    with encoder_folder(arguments.model, sentences) as folder:
        results = measure_embedding(folder, sentences[:number], 1 + rounds, arguments.tatoeba)
    write_json(Path(arguments.output), results)
    print(json.dumps({name: results[name] for name in ("ratios", "exactness")}, indent=2))
    return results


@contextmanager
def encoder_folder(given: str | None, sentences: list[str]) -> Iterator[str]:
    """The folder given, or one with random weights and a tokenizer of these sentences."""
    if given:
        yield given
        return
    torch.manual_seed(SEED)
    tokenizer = train_tokenizer(sentences, TRAINED_VOCABULARY, LONGEST)
    config = XLMRobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=514, type_vocab_size=1, **SIZES)
    with TemporaryDirectory() as folder:
        XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield folder


def measure_embedding(folder: str, sentences: list[str], rounds: int, tatoeba: str | None = None) -> dict[str, Any]:
    """Rows of seconds, the ratios, and how exact each number format is; round 0, dropped, has a few sentences."""
    encoders = make_encoders(folder)
    vectors: dict[str, np.ndarray] = {}

    def turn(name: str, number: int) -> dict[str, Seconds]:
        def encode() -> None:
            vectors[name] = encoders[name](sentences if number else sentences[:32])

        return {name: seconds_of(encode)}

    with tqdm(total=rounds * len(encoders), unit=" turns") as bar:
        on_done = partial(tell, bar, "embedding")
        timings = take_turns({name: partial(turn, name) for name in encoders}, rounds, on_done)
    rows = {name: cpu_row(seconds) for name, seconds in timings.items()}
    ratios = {
        f"embed_{name}_vs_{BASELINE}": median(map(truediv, rows[BASELINE]["cpu_rounds"], rows[name]["cpu_rounds"]))
        for name in PRECISIONS
    }
    exactness: dict[str, Any] = {
        "fp32": {"largest_difference": float(np.abs(vectors["fp32"] - vectors[BASELINE]).max())},
        **{name: cosines(vectors[name], vectors["fp32"]) for name in PRECISIONS if name != "fp32"},
    }
    if tatoeba:
        for name in PRECISIONS:
            exactness[name]["tatoeba_accuracy"] = tatoeba_accuracy(encoders[name], tatoeba)
    return {"sentences": len(sentences), "rows": rows, "ratios": ratios, "exactness": exactness}


def make_encoders(folder: str) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """The baseline and ours in each number format, from sentences to unit vectors."""
    transformer = Transformer(folder, max_seq_length=LONGEST)
    pooling = PoolingModule(transformer.get_word_embedding_dimension(), "mean")
    theirs = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    encoders: dict[str, Any] = {BASELINE: partial(theirs.encode, normalize_embeddings=True, show_progress_bar=False)}
    for name in PRECISIONS:
        model, tokenizer = load_encoder(folder, name, "cpu")
        pooling = Pooling("mean", model.config.num_hidden_layers)
        as_baseline: dict[str, Any] = {"pooling": pooling, "prompt": "", "normalize": True, "max_length": LONGEST}
        encoders[name] = partial(embed_sentences, model, tokenizer, **as_baseline)
    return encoders


def cosines(vectors: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Of unit vectors to the exact ones."""
    each = (vectors * exact).sum(1)
    return {"mean_cosine": float(each.mean()), "least_cosine": float(each.min())}


def tatoeba_accuracy(encode: Callable[[list[str]], np.ndarray], folder: str) -> float:
    """Percent, the mean of both directions and of all languages in the folder."""
    pairs = local_pairs("Tatoeba", Path(folder), []).values()
    return fmean(
        fmean(retrieval_accuracy(encode(list(rows["sentence1"])), encode(list(rows["sentence2"])))) for rows in pairs
    )


if __name__ == "__main__":
    main()
