"""Baselines other than naive HiCTL: the losses of other libraries, called as in their examples.

Both compute less than HiCTL: Hugging Face's translation language model has no contrast, sentence-transformers'
contrastive loss no language model. They use the weights of the naive network, to save memory; parameters without a
gradient cost their optimizer nothing.
"""

from tempfile import TemporaryDirectory

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import PreTrainedTokenizerBase, XLMRobertaConfig, XLMRobertaForMaskedLM, XLMRobertaModel
from transformers.utils import logging
from workload import Batch


def translation_lm_loss(network: XLMRobertaForMaskedLM, batch: Batch) -> Tensor:
    """The masked-language-model loss of x∘y, scored at every position."""
    return XLMRobertaForMaskedLM.forward(
        network, batch["input_ids"], batch["attention_mask"], labels=batch["labels"], return_dict=True
    ).loss


def sentence_transformers_loss(
    network: XLMRobertaForMaskedLM, tokenizer: PreTrainedTokenizerBase, bf16: bool = False
) -> MultipleNegativesRankingLoss:
    """The contrastive loss with its defaults, without a gradient cache, over the first tokens of the network's encoder.

    bf16 is switched on for the encoder itself.
    """
    logging.disable_progress_bar()
    small = {"vocab_size": len(tokenizer), "hidden_size": network.config.hidden_size, "num_hidden_layers": 0}
    with TemporaryDirectory() as folder:
        XLMRobertaModel(XLMRobertaConfig(**small)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder)
    transformer.model = network.roberta
    pooling = Pooling(network.config.hidden_size, pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=str(network.device))
    model.forward = torch.autocast(network.device.type, torch.bfloat16, enabled=bf16)(  # type: ignore[method-assign]
        model.forward
    )
    return MultipleNegativesRankingLoss(model)


def anchors_and_positives(batch: Batch) -> list[Batch]:
    """x and y as two columns of features, each padded to its longest, as its collator does."""
    columns = zip(batch["sentence_input_ids"].chunk(2), batch["sentence_attention_mask"].chunk(2))
    longest = [(ids, mask, int(mask.sum(-1).max())) for ids, mask in columns]
    return [{"input_ids": ids[:, :end], "attention_mask": mask[:, :end]} for ids, mask, end in longest]
