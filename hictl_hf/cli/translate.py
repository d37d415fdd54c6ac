"""Translate lines: of files, of standard input, or as they are typed. All go the same way: lines are taken from the
source in blocks, a block goes through `decoding.translate`, and its translations are written before more is read.

    hictl translate --model runs/translation/model --input news.en --output news.de
    cat news.en | hictl translate --model runs/translation/model --target_language de > news.de
    hictl translate --model runs/translation/model --best 5

A file is written beside its name, as NAME.partial, and has its name when it is whole.
One line of output for each line of input; with `--best` above 1 or `--scores true` it is "number<TAB>score<TAB>text",
the number counting the lines of all input from 1.
"""

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ..data.lines import check_inputs, check_output, open_output, read_texts
from ..embedding.encoder import check_device
from ..errors import BadInput, short_repr
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..parsing import CommandParser, parse_flags
from ..translation.beam_search import BeamSearchConfig
from ..translation.decoding import Translation, translate
from ..translation.pipeline import DTYPES, load_translator

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 8192
GROUPS = {
    "input and output": ("model", "input", "output", "target_language", "best", "scores"),
    "search": ("beams", "length_penalty", "max_length_a", "max_length_b", "max_length"),
    "computation": ("max_tokens", "lines_at_once", "cut", "dtype", "device"),
}


@dataclass
class TranslateArguments:
    """Settings of `hictl translate`."""

    model: str = field(metadata={"help": "Folder or Hub name of a translation model."})
    input: list[str] = field(
        default_factory=list, metadata={"help": "Files of one sentence a line, .gz too; standard input without it."}
    )
    output: str | None = field(default=None, metadata={"help": "File to write; standard output without it."})
    target_language: str | None = field(
        default=None, metadata={"help": "Needed where the model has several target languages."}
    )
    beams: int | None = field(
        default=None, metadata={"help": "Hypotheses kept at each step, 1 is greedy search; as the model was saved."}
    )
    length_penalty: float | None = field(
        default=None, metadata={"help": "Scores are log-probability / length ** this; as the model was saved."}
    )
    best: int = field(default=1, metadata={"help": "Translations written for each line, at most --beams."})
    scores: bool = field(default=False, metadata={"help": "Write number, score and text instead of the text alone."})
    max_length_a: float = field(default=1.2, metadata={"help": "A translation has at most a * source tokens + b ..."})
    max_length_b: int = field(default=10, metadata={"help": "... tokens, this being b."})
    max_length: int = field(default=200, metadata={"help": "Most tokens of a translation, however long its source."})
    max_tokens: int | None = field(
        default=None, metadata={"help": "Source tokens of a batch, padding included; 512 on a CPU, else 8192."}
    )
    lines_at_once: int | None = field(
        default=None, metadata={"help": f"Lines read before they are translated; {LINES_AT_ONCE}, or 1 when typed."}
    )
    cut: bool = field(default=False, metadata={"help": "Cut sources that are too long for the model; else an error."})
    dtype: str | None = field(
        default=None,
        metadata={"help": f"Numbers to compute in: {', '.join(DTYPES)}; bfloat16 on a GPU, else float32, without it."},
    )
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; a GPU where there is one without it."})

    def __post_init__(self) -> None:
        if self.lines_at_once is not None and self.lines_at_once < 1:
            raise BadInput(f"lines_at_once is {self.lines_at_once}; allowed is 1 or more")
        check_device(self.device)


def make_parser() -> CommandParser:
    return CommandParser(TranslateArguments, "Translate lines of text.", GROUPS)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the command line."""
    args = parse_flags(make_parser(), argv)
    check_inputs(args.input)
    check_output(args.output, args.input)
    model, tokenizer = load_translator(args.model, dtype=args.dtype, device=args.device)
    check_target(args, model)
    names = ("beams", "length_penalty", "best", "max_length_a", "max_length_b", "max_length")
    settings = BeamSearchConfig.of(model, **{name: getattr(args, name) for name in names})
    typed = not args.input and sys.stdin.isatty()
    size = args.lines_at_once or (1 if typed else LINES_AT_ONCE)
    lines, before = read_texts(args.input), 0
    with open_output(args.output) as output:
        while block := list(islice(lines, size)):
            translations = translate(
                model, tokenizer, block, settings, args.target_language, args.max_tokens, not typed, args.cut
            )
            for number, found in enumerate(translations, start=before + 1):
                output.writelines(f"{line}\n" for line in written(number, found, args.scores or args.best > 1))
            output.flush()
            before += len(block)


def check_target(args: TranslateArguments, model: HictlForConditionalGeneration) -> None:
    """Raise `BadInput` if the model does not know into which language, or not that one."""
    known, given = model.config.target_languages or [], args.target_language
    if given is None and model.generation_config.decoder_start_token_id is not None:
        return
    if known and given not in known:
        found = "is not given" if given is None else f"is {short_repr(given)}"
        allowed = f"allowed for {args.model} are {', '.join(known)}"
        raise BadInput(f"target_language {found}; {allowed}. Say it by --target_language {known[0]}.")


def written(number: int, found: Sequence[Translation], scores: bool) -> Iterator[str]:
    for translation in found:
        yield f"{number}\t{translation.score:.4f}\t{translation.text}" if scores else translation.text
