"""Each family of encoders as it is published, with small widths, and a small tokenizer in each family's layout."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DebertaV2ForMaskedLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hictl_hf.data.tokenization import train_tokenizer

# transformers 5.18 cannot load its own head of DeBERTa-v3: it ties a weight that the head does not have
V3_HEAD_FAILS = "lm_predictions.lm_head.weight" in inspect.getsource(DebertaV2ForMaskedLM.__init__)
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHAPES: dict[str, dict[str, Any]] = {
    # BGE-M3
    "xlm-roberta": {
        **SMALL, **NO_DROPOUT, "max_position_embeddings": 8194, "type_vocab_size": 1, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5,
    },
    "xlm-roberta-xl": {
        **SMALL, **NO_DROPOUT, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5,
    },
    # mBERT, LaBSE
    "bert": {**SMALL, **NO_DROPOUT, "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0},
    # mmBERT; its local attention, 128, is so small here that toy sentences are longer
    "modernbert": {
        **SMALL, "num_hidden_layers": 4, "max_position_embeddings": 8192, "local_attention": 6, "pad_token_id": 0,
        "bos_token_id": 2, "eos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1,
    },
    # EuroBERT 610m: three queries a key
    "eurobert": {**SMALL, "num_attention_heads": 6, "hidden_size": 48, "num_key_value_heads": 2},
    # mDeBERTa-v3
    "deberta-v2": {
        **SMALL, **NO_DROPOUT, "max_position_embeddings": 512, "relative_attention": True, "position_buckets": 8,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "pad_token_id": 0,
        "position_biased_input": False, "type_vocab_size": 0, "legacy": V3_HEAD_FAILS,
    },
}  # fmt: skip


def template(before: str, between: str, after: str, ids: dict[str, int]) -> processors.TemplateProcessing:
    """Post-processor that writes a text as `before A after`, a pair as `before A between B after`."""
    second = " ".join(name if name in ids else name for name in between.split())
    words = {*before.split(), *between.split(), *after.split()}
    return processors.TemplateProcessing(
        f"{before} $A:0 {after}".strip(), f"{before} $A:0 {second} $B:1 {after}:1",
        [(word.split(":")[0], ids[word.split(":")[0]]) for word in words],
    )  # fmt: skip


def word_pieces(texts: Iterable[str], lowercase: bool = False) -> PreTrainedTokenizerBase:
    """BERT's: WordPiece, the special tokens after unused ones, token types."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=160, special_tokens=special))
    tokenizer.decoder = decoders.WordPiece()
    ids = {name: tokenizer.token_to_id(name) for name in special}
    tokenizer.post_processor = template("[CLS]", "[SEP]", "[SEP]", ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def gemma_pieces(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """mmBERT's, which is Gemma's: BPE that falls back to bytes, spaces as ▁ without one before the first word."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused0>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=tokens))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.post_processor = template("<bos>", "<eos>", "<eos>", {"<bos>": 2, "<eos>": 1})
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        mask_token="<mask>", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    return made


def bytes_as_letters(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """EuroBERT's, which is Llama 3's: byte-level BPE, special ids at the end, padding is the end, nothing unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet))
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|reserved_special_token_0|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    ids = {name: tokenizer.token_to_id(name) for name in special}
    begin, end = special[:2]
    tokenizer.post_processor = template(begin, f"{end} {begin}:1", end, ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token=end, pad_token=end, mask_token="<|mask|>",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def unigram_pieces(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """mDeBERTa-v3's: SentencePiece's unigrams with other special ids than XLM-R's."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=[*special, "[MASK]"], unk_token="[UNK]")
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = template("[CLS]", "[SEP]", "[SEP]", {"[CLS]": 1, "[SEP]": 2})
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
        mask_token="[MASK]", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def xlm_r_pieces(texts: Iterable[str]) -> PreTrainedTokenizerBase:
    return train_tokenizer(texts, vocab_size=160)


TOKENIZERS: dict[str, Callable[[Iterable[str]], PreTrainedTokenizerBase]] = {
    "xlm-roberta": xlm_r_pieces,
    "xlm-roberta-xl": xlm_r_pieces,
    "bert": word_pieces,
    "modernbert": gemma_pieces,
    "eurobert": bytes_as_letters,
    "deberta-v2": unigram_pieces,
}


def ids_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special ids of a tokenizer, as a configuration names them."""
    names = ("pad", "bos", "eos", "cls", "sep", "mask")
    found = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in names}
    return {name: number for name, number in found.items() if number is not None}
