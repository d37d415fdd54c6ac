"""`hictl translate`: translate lines of files, of stdin or as they are typed (`translation.decoding.translate`).

    hictl translate --model runs/translation/model --input news.en --output news.de
    cat news.en | hictl translate --model runs/translation/model --target_lang de > news.de
    hictl translate --model runs/translation/model --input pairs.jsonl --column translation.en --output news.de
    hictl translate --model runs/translation/model --best 5

Lines are read, translated and written in blocks. Until a file is complete its parts are in the folder NAME.partial,
from which the same command continues, and which several processes share (`processes`).
The output has one line per input line; with `--best` above 1 or `--scores true` a line is "number<TAB>score<TAB>text",
where number is the line number of the input, from 1, counted over all files.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..data.columns import check_column, read_lines_or_column, read_numbered
from ..data.languages import find_language, wanted_language
from ..data.lines import check_inputs, check_output, open_output
from ..embedding.encoder import check_device
from ..errors import BadInput, short_repr
from ..files import is_stream
from ..models.families import longest_input
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..parsing import CommandParser, parse_flags
from ..processes import current, refuse_streams
from ..translation.beam_search import BeamSearchConfig
from ..translation.decoding import naming_lines, refuse_long_texts, translate
from ..translation.pipeline import DTYPES, load_translator
from ..translation.to_file import LINES_AT_ONCE, TranslationFileConfig, translate_to_file, written

GROUPS = {
    "input and output": ("model", "input", "column", "output", "target_lang", "best", "scores"),
    "search": ("num_beams", "length_penalty", "max_length_a", "max_length_b", "max_length"),
    "computation": ("max_tokens", "lines_at_once", "cut", "dtype", "device"),
}


@dataclass
class TranslateArguments:
    """Arguments of `hictl translate`."""

    model: str = field(metadata={"help": "Folder or Hub name of a translation model."})
    input: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Files of one sentence per line, may be compressed, or tables (.jsonl, .csv, .tsv, .parquet) with "
            "--column; default: stdin."
        },
    )
    column: str | None = field(default=None, metadata={"help": "Text column of the tables; a.b is key b of column a."})
    output: str | None = field(
        default=None, metadata={"help": "File, pipe or device to write; default, and -: stdout."}
    )
    target_lang: str | None = field(
        default=None, metadata={"help": "Required if the model has several target languages."}
    )
    num_beams: int | None = field(
        default=None, metadata={"help": "Beam size, 1: greedy search; default: that of the model's config."}
    )
    length_penalty: float | None = field(
        default=None,
        metadata={"help": "p in score = log-probability / length ** p; default: that of the model's config."},
    )
    best: int = field(default=1, metadata={"help": "Translations per line, at most --num_beams."})
    scores: bool = field(default=False, metadata={"help": "Write line number, score and text, not only the text."})
    max_length_a: float = field(default=1.2, metadata={"help": "Factor a of the length limit, a * source tokens + b."})
    max_length_b: int = field(default=10, metadata={"help": "Constant b of the length limit, in tokens."})
    max_length: int = field(default=200, metadata={"help": "Upper bound of the length limit, in tokens."})
    max_tokens: int | None = field(
        default=None, metadata={"help": "Source tokens per batch, padding included; default: 512 on a CPU, else 8192."}
    )
    lines_at_once: int | None = field(
        default=None, metadata={"help": f"Lines per block; default: {LINES_AT_ONCE}, or 1 if they are typed."}
    )
    cut: bool = field(default=False, metadata={"help": "Truncate sources too long for the model; default: an error."})
    dtype: str | None = field(
        default=None,
        metadata={
            "help": f"Dtype of the weights: {', '.join(DTYPES)} (a translation then depends a little on its batch); "
            "default: bfloat16 on a GPU that has it, else float32."
        },
    )
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; default: a GPU if available."})

    def __post_init__(self) -> None:
        for name in ("lines_at_once", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; allowed is 1 or more")
        check_column(self.input, self.column)
        check_device(self.device)


def make_parser() -> CommandParser:
    return CommandParser(TranslateArguments, "Translate lines of text.", GROUPS, __doc__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args = parse_flags(make_parser(), argv)
    check_inputs(args.input)
    check_output(args.output, args.input, may_be_stream=True)
    processes, total = current(), None
    refuse_streams(processes, input=args.input, output=args.output)
    # a first pass finds invalid lines before the model is loaded
    read_twice = bool(args.input) and all(map(os.path.isfile, args.input))
    if processes.is_main and read_twice:
        total = sum(1 for _ in read_lines_or_column(args.input, args.column))
    model, tokenizer = load_translator(args.model, dtype=args.dtype, device=args.device)
    check_target(args, model)
    if read_twice and not args.cut:
        places, longest = read_numbered(args.input, args.column), longest_input(model.config)
        processes.on_main(lambda: refuse_long_texts(places, tokenizer, longest))
    names = ("num_beams", "length_penalty", "best", "max_length_a", "max_length_b", "max_length")
    settings = BeamSearchConfig.of(model, **{name: getattr(args, name) for name in names})
    scores = args.scores or args.best > 1
    if args.output and not is_stream(args.output):
        size = args.lines_at_once or LINES_AT_ONCE
        config = TranslationFileConfig(settings, args.target_lang, args.max_tokens, scores, size)
        translate_to_file(
            model, tokenizer, read_lines_or_column(args.input, args.column), args.output, config, cut=args.cut,
            total=total, processes=processes,
        )  # fmt: skip
        return
    typed = not args.input and sys.stdin.isatty()
    size = args.lines_at_once or (1 if typed else LINES_AT_ONCE)
    lines, before = read_lines_or_column(args.input, args.column), 0
    with open_output(args.output) as output:
        while block := list(islice(lines, size)):
            with naming_lines(block, before):
                translations = translate(
                    model, tokenizer, block, settings, args.target_lang, args.max_tokens, not typed, args.cut
                )
            for number, found in enumerate(translations, start=before + 1):
                output.writelines(f"{line}\n" for line in written(number, found, scores))
            output.flush()
            before += len(block)


def check_target(args: TranslateArguments, model: HictlForConditionalGeneration) -> None:
    """Raise `BadInput` if the target language is missing or is not one of the model's."""
    known, given = model.config.target_languages or [], args.target_lang
    if given is None and model.generation_config.decoder_start_token_id is not None:
        return
    if known and not find_language(given or "", known):
        found = "is not given" if given is None else f"is {short_repr(given)}"
        allowed = f"allowed for {args.model} are {', '.join(known)}"
        example = wanted_language(given or "", known) or known[0]
        raise BadInput(f"target_lang {found}; {allowed}. Give it, for example --target_lang {example}.")
