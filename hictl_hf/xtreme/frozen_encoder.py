"""Retrieval tasks: predictions from the sentence vectors of an encoder that is not fine-tuned, and scores by layer."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import torch
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..embedding.encoder import embed_at_poolings
from ..embedding.pooling import Pooling, all_poolings, own_pooling
from ..embedding.sentence_transformers_settings import apply_settings, read_sentence_transformers_files
from ..errors import BadInput, as_bad_input, short_repr
from ..files import write_json
from ..hub.loading import refuse_lacking
from ..reports.results import from_json, to_json
from ..retrieval.bitext import Bitext, IdPair
from .arguments import XtremeArguments
from .data import TaskData, number_of_examples, without_references
from .files import data_hash
from .fine_tuned_models import device
from .fine_tuning import POOLER
from .predictions import Embedded
from .results import LayerScores, LayerSweep, TaskResults, upgrade_sweep
from .resuming import Derived
from .scores import prediction_files
from .setup import encoder_place
from .sharing import Job
from .tasks import Examples, XtremeTask

logger = logging.getLogger(__name__)

RETRIEVAL_LAYERS = {12: 8, 24: 14}  # layers of an encoder -> the layer that XTREME's Tatoeba script reads
RETRIEVAL_LENGTH = 512  # tokens, as in XTREME's scripts, where the encoder states no other number


class FrozenEncoder:
    """Predicts retrieval tasks at one layer and pooling, and scores all of them if the arguments ask for it.

    Args:
        layers: of the encoder.
    """

    def __init__(self, args: XtremeArguments, tokenizer: PreTrainedTokenizerBase, layers: int) -> None:
        self.args, self.tokenizer, self.layers = args, tokenizer, layers
        self.folder = Path(args.output_dir)
        default = RETRIEVAL_LAYERS.get(layers, round(2 * layers / 3))
        self.pooling = Pooling(args.pooling, default if args.layer is None else args.layer)
        self.loaded: PreTrainedModel | None = None
        self.prompt: str | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The encoder in float32 on the GPU if training uses one, loaded at its first use."""
        if self.loaded is None:
            name = str(self.args.checkpoint)
            encoder, report = AutoModel.from_pretrained(
                encoder_place(name), dtype=torch.float32, use_safetensors=True, output_loading_info=True,
                trust_remote_code=False,
            )  # fmt: skip
            refuse_lacking(name, [weight for weight in report["missing_keys"] if POOLER not in weight])
            if settings := read_sentence_transformers_files(name):
                apply_settings(name, encoder, self.tokenizer, settings)
                if (own := own_pooling(encoder.config)) != self.pooling:
                    message = (
                        "%s: says that it is read at %s of layer %d; XTREME's protocol, or the arguments, say %s of %d"
                    )
                    logger.info(message, name, *own, *self.pooling)
            self.loaded = encoder.to(device())
        return self.loaded

    def release(self) -> None:
        """Free the encoder's memory; the next use loads it again."""
        self.loaded = None

    def signature(self) -> dict[str, str]:
        """Entries for the signature of a score: how its predictions were made."""
        prompt = {"prompt": short_repr(self.prompt)} if self.prompt else {}
        return {"layer": str(self.pooling.layer), "pooling": self.pooling.mode, **prompt}

    # --- before predicting --------------------------------------------------------------------------------------------

    def check(self, data: TaskData) -> None:
        """Raise `BadInput` for a layer the encoder lacks, or a threshold that cannot be chosen."""
        if not data.test:
            return
        if not 0 <= self.pooling.layer <= self.layers:
            raise BadInput(f"layer is {self.pooling.layer}; the encoder has the layers 0 (embeddings) to {self.layers}")
        for language in data.test if data.task.format.tuned_on_dev else ():
            if language not in data.dev or data.task.format.references(data.dev[language]) is None:
                raise BadInput(
                    f"{data.task.name}: its threshold is chosen on the split {self.args.select_split!r}, whose "
                    f"files or labels are missing in {language}; add them"
                )
        self.prompt = default_prompt(str(self.args.checkpoint))

    def derived(self, data: TaskData) -> Iterator[Derived]:
        """The predictions of each language, and the sweep, with the hash of the examples."""
        for language, path in prediction_files(self.folder, data).items():
            test = data.test[language]
            labelled, unlabelled = (
                data_hash([data_hash(rows), data_hash(data.dev.get(language, rows))])
                for rows in (test, without_references(test))
            )
            paths = (path, self.sweep_file(data.task))
            yield Derived(f"{data.task.name} {language}", paths, labelled, unlabelled=unlabelled)

    def jobs(self, data: TaskData) -> Iterator[Job]:
        """The scores of all layers, if the arguments ask for them."""
        if self.args.sweep_layers and data.test:
            cost = sum(map(number_of_examples, data.test.values()))
            yield Job(self.sweep_file(data.task), 2, cost, lambda: self.sweep(data))

    # --- predictions --------------------------------------------------------------------------------------------------

    def predict(self, data: TaskData, language: str) -> list[str] | set[IdPair]:
        """The nearest candidate of each query, or mined pairs; writes the score of the other direction to a file."""
        task, test, dev = data.task, data.test[language], data.dev.get(language)
        assert task.format.retrieve is not None
        embedded = self.embed(test, [self.pooling])[self.pooling]
        if dev is None or dev == test:
            embedded_dev = None if dev is None else embedded
        else:
            embedded_dev = self.embed(dev, [self.pooling])[self.pooling]
        if task.format.other_direction and data.references[language] is not None:
            write_json(self.other_direction_file(task, language), task.format.other_direction(embedded))
        predicted: list[str] | set[IdPair] = task.format.retrieve(embedded, embedded_dev)
        return predicted

    def embed(self, bitext: Examples, poolings: list[Pooling]) -> dict[Pooling, Embedded]:
        """Vectors of both sides of a bitext at several layers and poolings."""
        assert isinstance(bitext, Bitext)
        sentences, border = [*bitext.queries, *bitext.candidates], len(bitext.queries)
        longest = getattr(self.model.config, "embedding_max_length", None) or RETRIEVAL_LENGTH
        vectors = embed_at_poolings(self.model, self.tokenizer, sentences, poolings, max_length=longest, progress=True)
        return {pooling: (bitext, both[:border], both[border:]) for pooling, both in vectors.items()}

    def describe(self, data: TaskData, results: TaskResults) -> None:
        """Add the scores by layer, if the arguments ask for them, and of the other direction to the results."""
        if self.args.sweep_layers:
            results.sweep = self.sweep(data)
            results.layers = results.sweep.mean
        files = {language: self.other_direction_file(data.task, language) for language in data.test}
        scores = {}
        for language, path in files.items():
            if path.exists() and data.references[language] is not None:
                with as_bad_input(str(path), "a score as JSON", "Remove it, and the predictions to score them again."):
                    scores[language] = json.loads(path.read_text("utf-8"))
        results.other_direction = scores or None

    def other_direction_file(self, task: XtremeTask, language: str) -> Path:
        return self.folder / "other_direction" / f"{task.name}-{language}.json"

    # --- layers -------------------------------------------------------------------------------------------------------

    def sweep(self, data: TaskData) -> LayerSweep:
        """Score all layers and poolings on dev, without it on the scored split; read the file of an earlier call."""
        path = self.sweep_file(data.task)
        if path.exists():
            with as_bad_input(str(path), "scores of layers as JSON", "Remove it to score them again."):
                sweep: LayerSweep = from_json(LayerSweep, upgrade_sweep(json.loads(path.read_text("utf-8"))))
                return sweep
        scores = {}
        for language, test in data.test.items():
            bitext = data.dev.get(language, test)
            if data.task.format.references(bitext) is not None:
                scores[language] = self.scores_by_layer(data.task, bitext, language)
        sweep = LayerSweep(split="dev" if data.dev else self.args.score_split, languages=scores)
        write_json(path, to_json(sweep))
        return sweep

    def scores_by_layer(self, task: XtremeTask, bitext: Examples, language: str) -> LayerScores:
        """By pooling, the score of each layer, 0 the embeddings."""
        assert task.format.retrieve is not None
        references = task.format.references(bitext)
        poolings = all_poolings(range(self.layers + 1), self.layers, projection=False)
        scores: LayerScores = {pooling: [None] * (self.layers + 1) for pooling in ("mean", "cls")}
        for pooling, embedded in self.embed(bitext, poolings).items():
            values = task.score(task.format.retrieve(embedded, embedded), references, language)
            scores[pooling.mode][pooling.layer] = fmean(values[metric] for metric in task.metrics)
        return scores

    def sweep_file(self, task: XtremeTask) -> Path:
        return self.folder / "sweeps" / f"{task.name}.json"


def default_prompt(encoder: str) -> str | None:
    """The default prompt of an encoder; `BadInput` if it is to be read in a way that is not supported."""
    if settings := read_sentence_transformers_files(encoder):
        return settings.default_prompt
    prompt: str | None = PreTrainedConfig.get_config_dict(encoder)[0].get("embedding_prompt")
    return prompt
