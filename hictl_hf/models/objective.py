"""The objective L = L_LM + L_S + L_W, as a mixin of a masked language model of any family.

`losses` defines the losses, `negatives` and `word_sampling` choose their negatives; this module asks the encoder for
the hidden states that they take (`masked_language_model`).
Shapes: n pairs (or monolingual sentences), N = 2n sentences, T tokens of x∘y, S tokens of a sentence, B words of a bag,
V words of the vocabulary, d dimensions, r dimensions of the projection.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.utils import can_return_tuple

from .families import refuse_adapter
from .gathering import count_rows, gather_sentences, gather_texts
from .gpu import on_device
from .linear_cross_entropy import linear_cross_entropy
from .losses import in_full_precision, mean_over_batch, sentence_contrast, word_contrast
from .masked_language_model import FamilyMaskedLM
from .negatives import in_batch_negatives
from .outputs import CachedSentenceLevel, HictlForPreTrainingOutput, PreTrainingBatch, SentenceLevel
from .packing import PackedRows, accept_packed_rows
from .sentence_probability import SentenceProbability
from .supported_versions import overrides_private
from .word_sampling import sample_words_and_list

WORDS = "the layer of word embeddings"


class SentenceProjection(nn.Linear):
    """f: linear, as in the paper, or with the bias and activation function of a sentence encoder's dense layer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.projection_size or config.hidden_size, config.projection_bias)
        self.activation = ACT2FN[config.projection_activation]

    def forward(self, states: Tensor) -> Tensor:
        """(N, r) r of the pooled states (N, d), of which means are in fp32 whatever the model is in."""
        projected: Tensor = self.activation(super().forward(states.to(self.weight.dtype)))
        return projected


class HictlObjective(FamilyMaskedLM):
    """A sentence projection f and the objective L = L_LM + L_S + L_W, on top of a masked language model.

    `projection.weight` is the only new weight (`projection.bias` one more with `config.projection_bias`), and without
    `config.sentence_projection` there is none. Called with
    `input_ids`, `attention_mask` and `labels` alone it is the masked language model.
    """

    accepts_loss_kwargs = False
    reads_own_fields = True
    _keys_to_ignore_on_load_unexpected = [r"pooler", r"projection"]  # the latter of a config without it
    _keys_to_ignore_on_load_missing = [r"sentence_probability"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        config.embedding_pooling = config.embedding_pooling or config.sentence_pooling
        self.loss_type = "ForMaskedLM"  # transformers would take another loss by the name of the class
        words, states = self.get_input_embeddings().embedding_dim, config.hidden_size
        if words != states:
            raise ValueError(
                f"its word embeddings have {words} dimensions, its states {states}; allowed are encoders in which both "
                "have the same, as HiCTL compares them"
            )
        self.projection = SentenceProjection(config) if config.sentence_projection else nn.Identity()
        self.sentence_probability = SentenceProbability(config.hard_negative_window)
        accept_packed_rows(self)
        self.post_init()

    @torch.no_grad()
    @overrides_private(PreTrainedModel)
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the added weights and buffers, too: when a model is loaded, the values of `__init__` are lost."""
        super()._init_weights(module)
        if isinstance(module, SentenceProbability):
            init.zeros_(module.recent)
            init.zeros_(module.steps)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sentence_input_ids: Tensor | None = None,
        sentence_attention_mask: Tensor | None = None,
        sentence_hashes: Tensor | None = None,
        bag: Tensor | None = None,
        clean_input_ids: Tensor | None = None,
        example_seeds: Tensor | None = None,
        items_in_batch: dict[str, Tensor] | None = None,
        gather: bool = False,
        cached: CachedSentenceLevel | None = None,
        lm_head_only: bool = False,
        clean_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> HictlForPreTrainingOutput:
        """Compute all losses of a batch.

        Without `HictlTrainer`, call `sentence_probability.record(out.sentence_loss, out.negatives_per_anchor > 0)` for
        each optimiser step: else λ stays 1, which moves no negative. A batch without negatives, such as the last one of
        an epoch with one pair, has loss 0, and would count as learned.

        Args:
            input_ids: (n, T) masked x∘y, or masked x where the text is monolingual.
            attention_mask: (n, T) 1 on tokens, 0 on padding.
            labels: (n, T) original ids at masked positions, -100 elsewhere.
            sentence_input_ids: (N, S) unmasked sentences, x_1 … x_n and then y_1 … y_n.
            sentence_attention_mask: (N, S).
            sentence_hashes: (N,) int64, equal where texts are equal; without it all texts count as different.
            bag: (n, B) ids of the unique words of the unmasked x∘y, -1 beyond their number.
            clean_input_ids: (n, T) unmasked x∘y, needed where `config.word_level_input` is "clean".
            example_seeds: (n,) int64 seed of the word negatives of each pair.
            items_in_batch: number of masked tokens ("lm"), sentences ("sentence") and pairs ("word") of the complete
                batch if this call gets only a part of it: the losses are then this part's share of the mean.
            gather: contrast the sentences of all processes, which must all call this at the same time.
            cached: L_S of a complete batch, of which this is a micro-batch (gradient cache), computed from the output
                of `encode_sentences` for these sentences and `example_seeds`.
            lm_head_only: L_LM trains its head and not the encoder: a new head must learn before it may move it.
            clean_attention_mask: (n, T) of `clean_input_ids`; by default `attention_mask`.

        Raises:
            ValueError: arguments that pre-training does not use, no loss to train, or `nn.DataParallel`.
            TypeError: an unknown argument.
        """
        is_masked_lm = sentence_input_ids is None and bag is None and example_seeds is None and items_in_batch is None
        if is_masked_lm and not lm_head_only:
            return self.forward_masked_lm(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids,
                position_ids=position_ids, inputs_embeds=inputs_embeds, labels=labels, **kwargs,
            )  # fmt: skip
        others = dict(kwargs, token_type_ids=token_type_ids, position_ids=position_ids, inputs_embeds=inputs_embeds)
        if unused := [name for name, value in others.items() if value is not None and value is not False]:
            raise ValueError(f"pre-training makes no use of {', '.join(unused)}; leave them out")
        if getattr(self, "_is_replica", False):  # each would get as many x and y as before, and pair others
            raise ValueError(
                "nn.DataParallel splits a batch between GPUs, and x_1 … x_n, y_1 … y_n between x and y; start one "
                "process for each GPU (accelerate launch, torchrun), or choose one by CUDA_VISIBLE_DEVICES"
            )
        batch = PreTrainingBatch(
            input_ids, attention_mask, labels, sentence_input_ids, sentence_attention_mask, sentence_hashes, bag,
            clean_input_ids, example_seeds, items_in_batch or {}, lm_head_only, clean_attention_mask,
        ).of_objectives(self.config)  # fmt: skip
        if cached is not None and batch.sentence_input_ids is not None:
            return self.forward_with_cached(batch, cached)
        return self.forward_pretraining(batch, gather)

    # --- the three paths of `forward` ---------------------------------------------------------------------------------

    def forward_pretraining(self, batch: PreTrainingBatch, gather: bool) -> HictlForPreTrainingOutput:
        """L_LM + L_S + L_W: one pass of the encoder over all inputs, then the losses of the states they read."""
        result = HictlForPreTrainingOutput()
        hidden, targets, embeddings = self.states_read(batch, batch.encoder_inputs(self.config))
        if batch.sentence_input_ids is not None:
            sentences = self.projection(hidden["sentences"])  # r = f(g(M(x))), g is in `states_read`
            level = self.sentence_level(sentences, batch.sentence_hashes, batch.items.get("sentence"), gather)
            self.add_sentence_level(result, sentences, level)
        self.add_token_losses(result, batch, hidden, targets, embeddings)
        return HictlForPreTrainingOutput(loss=self.total(result), **result)

    def forward_with_cached(self, batch: PreTrainingBatch, cached: CachedSentenceLevel) -> HictlForPreTrainingOutput:
        """`forward_pretraining` for a micro-batch of the gradient cache.

        L_S was computed from the representations r of all micro-batches. Here the sentences of this one are encoded
        again, with the dropout of the first time, and get the cached gradient of r.
        """
        result = HictlForPreTrainingOutput()
        inputs = batch.encoder_inputs(self.config)
        mask = batch.sentence_attention_mask
        sentences, embeddings = self.encode_apart(inputs.pop("sentences")[0], mask, batch.example_seeds)
        self.add_sentence_level(result, sentences, cached.with_gradient_of(in_full_precision(sentences)))
        if inputs:
            hidden, targets, embeddings = self.states_read(batch, inputs, embeddings)
            self.add_token_losses(result, batch, hidden, targets, embeddings)
        return HictlForPreTrainingOutput(loss=self.total(result), **result)

    # --- encoder ------------------------------------------------------------------------------------------------------

    def states_read(
        self, batch: PreTrainingBatch, inputs: dict[str, tuple[Tensor, Tensor | None]], embeddings: Tensor | None = None
    ) -> tuple[dict[str, Tensor], Tensor | None, Tensor]:
        """The last hidden states that the losses read, (k, d) by name, of one pass over all inputs.

        These are "sentences", pooled by g, the first tokens of "pairs", and "masked tokens". Also returns the labels
        (m,) of the latter, and the word embeddings (V, d) for their next use, whose gradient that of look-ups joins.
        """
        read: dict[str, tuple[str, Tensor | None]] = {}
        if "sentences" in inputs:
            read["sentences"] = self.tokens_pooled(batch.sentence_input_ids)
        if batch.bag is not None:
            read["pairs"] = self.config.word_level_input, None
        if batch.labels is not None:
            read["masked tokens"] = "masked", batch.labels != -100  # padding is never read
        rows = PackedRows(inputs, read)
        states, embeddings = self.encode(rows, embeddings)
        hidden = dict(zip(read, states.split(rows.sizes)))
        if "sentences" in hidden:
            hidden["sentences"] = self.pooled(rows, hidden["sentences"])
        targets = None if batch.labels is None else batch.labels.flatten()[rows.cells["masked tokens"]]
        return hidden, targets, embeddings

    def tokens_pooled(self, ids: Tensor | None) -> tuple[str, Tensor | None]:
        """The tokens that g reads of the sentences (N, S), as `PackedRows` takes them: the first of each, or all."""
        if ids is None or self.config.sentence_pooling == "cls":
            return "sentences", None
        return "sentences", torch.ones_like(ids, dtype=torch.bool)

    def pooled(self, rows: PackedRows, states: Tensor) -> Tensor:
        """(N, d) g(M(x)) of the sentences, from the states of `tokens_pooled`."""
        return states if self.config.sentence_pooling == "cls" else rows.means("sentences", states)

    def encode_sentences(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, example_seeds: Tensor | None = None
    ) -> Tensor:
        """(N, r) r = f(g(M(x))) of padded sentences: the projection of their pooled last hidden states.

        With example_seeds (n,) the dropout is the same in every call with these seeds.
        """
        return self.encode_apart(input_ids, attention_mask, example_seeds)[0]

    @torch.compiler.disable  # compiled dropout would draw other numbers in training than for the gradient cache
    def encode_apart(
        self, input_ids: Tensor, attention_mask: Tensor | None, example_seeds: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`encode_sentences`, and the word embeddings (V, d) for their next use."""
        read = {"sentences": self.tokens_pooled(input_ids)}
        seed = None if example_seeds is None else example_seeds[:1]
        rows = PackedRows({"sentences": (input_ids, attention_mask)}, read, seed)
        with random_numbers_of(rows.known[0], input_ids.device) if rows.known else nullcontext():
            hidden, vocabulary = self.encode(rows)
            return self.projection(self.pooled(rows, hidden)), vocabulary  # an adapter of f may have dropout

    # --- losses -------------------------------------------------------------------------------------------------------

    def add_token_losses(
        self,
        result: HictlForPreTrainingOutput,
        batch: PreTrainingBatch,
        hidden: dict[str, Tensor],
        targets: Tensor | None,
        embeddings: Tensor,
    ) -> None:
        """Store L_W and L_LM of the batch in the output, given `states_read`."""
        if batch.bag is not None:
            losses, embeddings = self.word_losses(hidden["pairs"], embeddings, batch.bag, batch.example_seeds)
            result.word_loss = mean_over_batch(losses, batch.items.get("word"))
        if targets is not None:
            states = hidden["masked tokens"]
            if batch.lm_head_only:
                states, embeddings = states.detach(), embeddings.detach()
            result.lm_loss = self.masked_token_loss(states, embeddings, targets, batch.items.get("lm"))

    def masked_token_loss(self, hidden: Tensor, embeddings: Tensor, targets: Tensor, items: Tensor | None) -> Tensor:
        """() L_LM: cross-entropy of the masked tokens from their hidden states (m, d); no others reach the head."""
        words = self.get_input_embeddings()
        hidden, weight, bias = self.family.lm_head(self, hidden)
        if weight is words.weight:
            refuse_adapter(WORDS, words)
            weight = embeddings
        return linear_cross_entropy(
            hidden, weight, weight.new_zeros(len(weight)) if bias is None else bias, targets, items
        )

    def sentence_level(
        self, sentences: Tensor, texts: Tensor | None, items: Tensor | None = None, gather: bool = False
    ) -> SentenceLevel:
        """L_S with hard negatives (equations 2 to 6) over sentences (N, r), or those of all processes together."""
        config = self.config
        if gather:
            counts = count_rows(sentences)
            sentences = gather_sentences(sentences, counts)
            texts = None if texts is None else gather_texts(texts, counts)
        texts = torch.arange(len(sentences), device=sentences.device) if texts is None else texts
        negatives = in_batch_negatives(texts, config.duplicates, config.same_side_negatives)
        strength = config.hard_negative_zeta * self.sentence_probability.mean() if config.hard_negatives else 0.0
        loss, mean_lambda = sentence_contrast(
            sentences, negatives, config.sentence_temperature, strength, config.hard_negative_space, items,
            config.hard_negative_lambda_gradient,
        )  # fmt: skip
        if gather:
            loss = loss / torch.distributed.get_world_size()
        return SentenceLevel(loss, mean_lambda, negatives.count_nonzero() / len(negatives))

    def add_sentence_level(self, result: HictlForPreTrainingOutput, sentences: Tensor, level: SentenceLevel) -> None:
        """Store the sentence-level loss and its statistics in the output."""
        result.sentence_embeddings, result.sentence_loss = sentences, level.loss
        result.hard_negative_lambda = level.hard_negative_lambda
        result.negatives_per_anchor = level.negatives_per_anchor

    def word_losses(
        self, queries: Tensor, vocabulary: Tensor, bag: Tensor, seeds: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(n,) L_W of each pair (equation 7): its words against words sampled from the rest of the vocabulary.

        Also returns the vocabulary (V, d) for its next use, to whose gradient that of these losses is added.
        """
        refuse_adapter(WORDS, self.get_input_embeddings())
        config = self.config
        special = torch.tensor([i for i in config.special_token_ids or () if i < len(vocabulary)], dtype=bag.dtype)
        excluded = torch.cat([bag, on_device(special, bag.device).expand(len(bag), -1)], 1)
        device = queries.device.type
        tf32 = device == "cuda" and torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False):
            queries = in_full_precision(queries)
            sampled, occurring = sample_words_and_list(
                bag, queries.detach(), vocabulary.detach(), excluded, config.word_negatives,
                config.word_sampling_temperature or config.word_temperature, seeds, tf32,
            )  # fmt: skip
            return word_contrast(queries, vocabulary, bag, sampled, config.word_temperature, occurring, tf32)

    def total(self, result: HictlForPreTrainingOutput) -> Tensor:
        """L = L_LM + L_S + L_W with the weights of the configuration (equation 9)."""
        weighted = {"lm_loss": "lm_weight", "sentence_loss": "sentence_weight", "word_loss": "word_weight"}
        factors = {loss: getattr(self.config, weight) for loss, weight in weighted.items() if loss in result}
        return torch.stack([result[loss] if by == 1 else by * result[loss] for loss, by in factors.items()]).sum()


@contextmanager
def random_numbers_of(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random numbers, such as those of dropout; restore their state afterwards."""
    devices = [device] if device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=devices[0].type if devices else "cuda"):
        torch.manual_seed(seed)  # one seed: the encoder draws once for all sentences of the micro-batch
        yield
