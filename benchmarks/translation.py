"""Compare translating, and a training step of translation, with Hugging Face's parts and their defaults.

The baseline is `EncoderDecoderModel` of the same layers (12 × 384 and 4 × 384) with XLM-R's 250,002 words on both
sides: `generate` with 5 beams in batches of 8 in file order, as its Trainer predicts, and a step with the Trainer's
label smoother. Ours decodes with those words and with 16,000 of them, and trains with 16,000.

Weights are random, so `</s>` is impossible and each translation is as long as the real one: ours stops each sentence
there, the baseline each batch at its longest. Usage:

    python benchmarks/translation.py --quick
    python benchmarks/translation.py --pairs corpus.jsonl.gz --encoder path/to/xlm-r
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measure import Action, cpu_row, peak_memory, seconds_of, take_turns, tell
from torch import Tensor, nn
from tqdm import tqdm
from transformers import EncoderDecoderConfig, EncoderDecoderModel, XLMRobertaConfig
from transformers.trainer_pt_utils import LabelSmoother
from workload import SEED, VOCABULARY, Rows, make_workload

from hictl_hf import HictlConfig
from hictl_hf.data.tokenization import token_batches
from hictl_hf.files import write_json
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.beam_search import BeamSearchConfig, search
from hictl_hf.translation.decoding import TOKENS_AT_ONCE

BEGIN, PADDING, END = 0, 1, 2
CUT = 16_000
DRAWN = 512  # pairs
LONGEST = 128  # tokens of a text; longer ones are left out
BATCH = 8  # sentences the baseline translates at once
SMOOTHING = 0.1
SIZES: dict[str, Any] = {
    "hidden_size": 384,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DECODERS = {"hf": VOCABULARY, "ours_cut": CUT, "ours": VOCABULARY}
STEPS = {  # whether the encoder is frozen
    "hf_step": False,
    "hf_step_frozen_encoder": True,
    "ours_step": False,
    "ours_step_frozen_encoder": True,
}
LEFT_OUT_QUICKLY = ("ours", "hf_step_frozen_encoder", "ours_step_frozen_encoder")
RATIOS = {
    "decode_vs_hf": ("hf", "ours_cut"),
    "decode_vs_hf_uncut": ("hf", "ours"),
    "translation_step_vs_hf": ("hf_step", "ours_step"),
    "translation_step_vs_hf_frozen_encoder": ("hf_step_frozen_encoder", "ours_step_frozen_encoder"),
}
MEMORY_RATIOS = {
    "decode_memory_vs_hf": ("hf", "ours_cut"),
    "decode_memory_vs_hf_uncut": ("hf", "ours"),
    "translation_step_memory_vs_hf": ("hf_step", "ours_step"),
}

Pairs = list[tuple[list[int], list[int]]]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, and write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 sentences, one round that counts")
    parser.add_argument("--pairs", metavar="FILE", help="sentence pairs, any source of run_pretraining.py [demo's]")
    parser.add_argument("--encoder", metavar="FOLDER", help="whose tokenizer to use [one trained on the pairs]")
    parser.add_argument("--output", default="benchmarks/translation.json", help="[benchmarks/translation.json]")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    pairs = draw_pairs(make_workload(arguments.pairs, arguments.encoder).texts["real"])
    results = measure_translation(pairs, arguments.quick)
    write_json(Path(arguments.output), results)
    print(json.dumps(results["ratios"], indent=2))
    return results


def draw_pairs(rows: Rows) -> Pairs:
    """`DRAWN` random pairs of source and target ids, with special tokens."""
    pairs: Pairs = []
    for at in np.random.default_rng(SEED).permutation(len(rows)):
        source, target = [BEGIN, *rows[at]["x"], END], [*rows[at]["y"], END]
        if max(len(source), len(target)) <= LONGEST:
            pairs.append((source, target))
    return pairs[:DRAWN]


def measure_translation(pairs: Pairs, quick: bool) -> dict[str, Any]:
    """Rows of seconds and megabytes, and the ratios; pairs in the order in which the baseline takes them."""
    sentences, rounds = (BATCH, 2) if quick else (64, 6)
    chosen, few = pairs[:sentences], pairs[: 2 * BATCH]
    decoders, steps = (
        [name for name in names if not (quick and name in LEFT_OUT_QUICKLY)] for names in (DECODERS, STEPS)
    )
    weighed = [(decoding_to_weigh, name) for name in decoders] + [(step_to_weigh, name) for name in steps]
    weighed, memory = [] if quick else weighed, {}
    with tqdm(total=len(weighed) + rounds * (len(decoders) + len(steps)), unit=" turns") as bar:
        on_done = partial(tell, bar, "translation")
        for make, name in weighed:
            memory[name] = peak_memory(make, name, few)
            on_done(f"{name}, memory")
        timings = take_turns(
            turns_of({name: partial(make_decoding, name) for name in decoders}, chosen), rounds, on_done
        )
        of_step = BATCH if quick else 2 * BATCH
        batches = [pairs[at : at + of_step] for at in range(0, len(pairs) - of_step, of_step)]
        timings |= take_turns(turns_of_steps(steps, batches), rounds, on_done)
    rows = {name: cpu_row(seconds) | memory.get(name, {}) for name, seconds in timings.items()}
    ratios: dict[str, float | None] = dict.fromkeys(RATIOS)
    for name, (over, under) in RATIOS.items():
        if under in rows:
            ratios[name] = median(map(truediv, rows[over]["cpu_rounds"], rows[under]["cpu_rounds"]))
    for name, (over, under) in MEMORY_RATIOS.items():
        high, low = (memory.get(row, {}).get("transient_mb") for row in (over, under))
        ratios[name] = high / low if high and low else None
    sizes = {"sentences": len(chosen), "source_tokens": tokens_of(chosen, 0), "target_tokens": tokens_of(chosen, 1)}
    return {"decoded": sizes, "pairs_of_a_step": of_step, "rows": rows, "ratios": ratios}


def tokens_of(pairs: Pairs, side: int) -> int:
    return sum(len(pair[side]) for pair in pairs)


def turns_of(makers: dict[str, Callable[[Pairs], Action]], pairs: Pairs) -> dict[str, Any]:
    """A turn for each variant, which calls its action once; round 0, which is dropped, has a few words."""
    small = {name: make(a_few_words(pairs)) for name, make in makers.items()}
    full = {name: make(pairs) for name, make in makers.items()}
    return {
        name: lambda number, name=name: {name: seconds_of(full[name] if number else small[name])} for name in makers
    }


def turns_of_steps(names: Sequence[str], batches: list[Pairs]) -> dict[str, Any]:
    """As `turns_of`; round 0 makes the optimiser's state on a small batch."""
    steps, batches = {name: make_step(name) for name in names}, [batches[0][:2], *batches[1:]]
    return {name: lambda number, name=name: {name: seconds_of(partial(steps[name], batches[number]))} for name in names}


# --- decoding -------------------------------------------------------------------------------------------------------


def decoding_to_weigh(name: str, pairs: Pairs) -> tuple[Action, Action]:
    """For a fresh process: a decoding to warm up with, and the decoding."""
    return make_decoding(name, a_few_words(pairs)), make_decoding(name, pairs)


def a_few_words(pairs: Pairs) -> Pairs:
    """To warm up with."""
    return [(source[:4], target[:3]) for source, target in pairs[:2]]


def make_decoding(name: str, pairs: Pairs) -> Action:
    """Translates all sources, each as long as its target, or as the longest target of its batch."""
    model = network(name)
    return partial(decode_hf, model, pairs) if name == "hf" else partial(decode_ours, model, pairs)


def decode_hf(model: EncoderDecoderModel, pairs: Pairs) -> None:
    for at in range(0, len(pairs), BATCH):
        sources, targets = zip(*pairs[at : at + BATCH])
        ids = padded(sources, PADDING)
        longest = max(map(len, targets))
        found = model.generate(ids, attention_mask=(ids != PADDING).long(), num_beams=5, max_new_tokens=longest)
        assert found.shape[1] == 1 + longest


def decode_ours(model: HictlForConditionalGeneration, pairs: Pairs) -> None:
    for batch in token_batches([len(source) for source, _ in pairs], TOKENS_AT_ONCE):
        sources, targets = zip(*(pairs[number] for number in batch))
        ids, limits = padded(sources, PADDING), torch.tensor([len(target) for target in targets])
        starts = torch.full((len(ids),), model.default_start_id())
        found = search(model, ids, (ids != PADDING).long(), starts, BeamSearchConfig(), limits)
        assert [len(best.tokens) for (best,) in found] == limits.tolist()


NETWORKS: dict[str, Any] = {}


def network(name: str) -> Any:
    """The network of a row, made once, on which `</s>` never comes."""
    if name not in NETWORKS:
        torch.manual_seed(SEED)
        NETWORKS[name] = baseline() if name.startswith("hf") else ours(DECODERS.get(name, CUT))
        head = NETWORKS[name].get_output_embeddings()
        with torch.no_grad():
            head.bias[END] = -1e4
    return NETWORKS[name].eval()


def baseline() -> EncoderDecoderModel:
    encoder = XLMRobertaConfig(vocab_size=VOCABULARY, num_hidden_layers=12, **SIZES)
    decoder = XLMRobertaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=4, is_decoder=True, add_cross_attention=True, **SIZES
    )
    model = EncoderDecoderModel(config=EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = BEGIN, PADDING, END
    return model


def ours(words: int) -> HictlForConditionalGeneration:
    """With the default bias, "dot"."""
    cut = words if words < VOCABULARY else None
    config = HictlConfig(vocab_size=VOCABULARY, num_hidden_layers=12, decoder_vocab_size=cut, **SIZES)
    return HictlForConditionalGeneration(config)


def padded(rows: Sequence[list[int]], filler: int) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler)


# --- a training step ------------------------------------------------------------------------------------------------


def step_to_weigh(name: str, pairs: Pairs) -> tuple[Action, Action]:
    """For a fresh process: a small step, which makes the optimiser's state, and a step."""
    step = make_step(name)
    return partial(step, pairs[:2]), partial(step, pairs)


def make_step(name: str) -> Callable[[Pairs], None]:
    """Forward, backward and AdamW on a batch, with label smoothing."""
    model = network("hf" if name == "hf_step" else name).train()
    if STEPS[name]:
        (model.encoder if name.startswith("hf") else model.roberta).requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    loss_of = hf_loss if name.startswith("hf") else our_loss

    def step(pairs: Pairs) -> None:
        loss_of(model, *(padded(side, filler) for side, filler in zip(zip(*pairs), (PADDING, -100)))).backward()
        optimizer.step()
        optimizer.zero_grad()  # so that the memory of the next step counts its gradients

    return step


def hf_loss(model: EncoderDecoderModel, ids: Tensor, labels: Tensor) -> Tensor:
    """As the Trainer computes it with `label_smoothing_factor`."""
    decoder_ids = model.prepare_decoder_input_ids_from_labels(labels)
    outputs = model(input_ids=ids, attention_mask=(ids != PADDING).long(), decoder_input_ids=decoder_ids)
    return LabelSmoother(SMOOTHING)(outputs, labels)


def our_loss(model: HictlForConditionalGeneration, ids: Tensor, labels: Tensor) -> Tensor:
    mask = (ids != PADDING).long()
    return model(input_ids=ids, attention_mask=mask, labels=labels, label_smoothing=SMOOTHING).loss


if __name__ == "__main__":
    main()
