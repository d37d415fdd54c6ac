"""`hictl score`: score translations against references with multi-bleu, sacreBLEU, chrF or COMET; with --baseline,
compare two systems by paired bootstrap (`translation.scores`).

    hictl score runs/de-en/generated_predictions.txt data/test.en --language en --metrics multi-bleu chrf
    hictl score ours.txt data/test.en --language en --baseline theirs.txt
"""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ..data.columns import refuse_tables
from ..data.formats import refuse_unequal
from ..data.lines import read_texts
from ..errors import BadInput, add_debug
from ..translation.moses import MosesTokenizer
from ..translation.prepare import preparation_signature
from ..translation.scores import METRICS, Comparison, Score, check_language, paired_bootstrap, score_translations

logger = logging.getLogger(__name__)

OF_MOSES = ("moses_dir", "aggressive", "split_compounds")
READ_BY = {  # metrics -> the flags that these alone read
    ("multi-bleu",): ("tokenised", *OF_MOSES, "strict"),
    ("sacrebleu",): ("tokenize",),
    ("sacrebleu", "multi-bleu", "chrf"): ("lowercase",),
}


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("hictl score", description="Score translations against references.")
    parser.add_argument("translations", help="file of translations, one per line, not tokenised")
    parser.add_argument("references", nargs="+", help="files of references with the same number of lines")
    group = parser.add_argument_group("input")
    group.add_argument("--language", required=True, help="language of the translations, such as de")
    group.add_argument("--sources", help="file of the source sentences, for comet")
    group.add_argument("--baseline", help="translations of another system, compared by paired bootstrap")
    group = parser.add_argument_group("metrics")
    group.add_argument("--metrics", nargs="+", default=["sacrebleu", "chrf"], help=f"some of {', '.join(METRICS)}")
    group.add_argument("--lowercase", action="store_true", help="lower-case translations and references")
    group.add_argument("--tokenize", help="sacreBLEU tokenizer, such as char; default: that of the language")
    group = parser.add_argument_group("multi-bleu")
    group.add_argument("--tokenised", action="store_true", help="the files are already tokenised")
    group.add_argument("--moses_dir", help="clone of mosesdecoder, to use its tokenizer.perl; default: sacremoses")
    group.add_argument("--aggressive", action="store_true", help="split words at hyphens (tokenizer.perl -a)")
    group.add_argument("--split_compounds", action="store_true", help="split words at hyphens after tokenisation")
    group.add_argument("--strict", action="store_true", help="count bytes, as multi-bleu.perl does")
    add_debug(parser)
    return parser


def check_effects(given: Namespace) -> None:
    """Raise `BadInput` for flags that none of the metrics reads or that are empty, and for two that exclude each
    other."""
    if empty := [name for name, value in vars(given).items() if value == ""]:
        raise BadInput(f"--{empty[0]} is empty; allowed is a name or a path. Is the variable set that it comes from?")
    for metrics, flags in READ_BY.items():
        if idle := [f"--{flag}" for flag in flags if getattr(given, flag) and not {*metrics} & {*given.metrics}]:
            found = f"{', '.join(idle)}: has no effect on {', '.join(given.metrics)}; allowed with {', '.join(metrics)}"
            raise BadInput(f"{found}. Leave it out, or add one of these to --metrics.")
    if given.tokenised and (idle := [f"--{flag}" for flag in OF_MOSES if getattr(given, flag)]):
        raise BadInput(f"{', '.join(idle)}: has no effect on text that is --tokenised. Leave one of them out.")
    if given.sources and "comet" not in given.metrics:
        logger.warning("%s: --sources are read by comet alone, which is not among --metrics", given.sources)


def main(argv: Sequence[str] | None = None) -> list[Score] | list[Comparison]:
    """Run the command and return what it prints; `argv` defaults to the command line."""
    given = make_parser().parse_args(argv)
    check_language(given.language)
    check_effects(given)
    paths = [given.translations, *given.references, *filter(None, (given.sources, given.baseline))]
    refuse_tables(paths, "Write the texts of one column to a text file")
    lines = {path: list(read_texts([path])) for path in paths}
    refuse_unequal({path: str(len(found)) for path, found in lines.items()})
    references = [lines[path] for path in given.references]
    moses = MosesTokenizer(given.language, given.moses_dir, given.aggressive, given.split_compounds)
    settings = {
        "tokenizer": "tokenised" if given.tokenised else moses,
        **{name: getattr(given, name) for name in ("tokenize", "lowercase", "strict")},
    }
    about = {name: value for path in given.references for name, value in preparation_signature(path).items()}
    texts = lines[given.translations]
    found: list[Score] | list[Comparison]
    try:
        if given.baseline:
            found = paired_bootstrap(
                lines[given.baseline], texts, references, given.language, given.metrics, about=about, **settings
            )
        else:
            sources = lines[given.sources] if given.sources else None
            found = score_translations(
                texts, references, given.language, given.metrics, sources=sources, about=about, **settings
            )
    except ValueError as error:
        raise BadInput(str(error)) from error
    print(*found, sep="\n")
    return found
