"""`hictl export-ctranslate2`: export a translation model to CTranslate2
(`translation.ctranslate2_export.export_ctranslate2`).

hictl export-ctranslate2 --model runs/de-en/model --output runs/de-en-ct2 --quantization int8
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..parsing import CommandParser, parse_flags
from ..translation.ctranslate2_export import export_ctranslate2
from ..translation.pipeline import load_translator

GROUPS = {"input and output": ("model", "output"), "export": ("quantization", "allow_drop_bias")}


@dataclass
class ExportCTranslate2Arguments:
    """Arguments of `hictl export-ctranslate2`."""

    model: str = field(metadata={"help": "Folder or Hub name of a translation model."})
    output: str = field(metadata={"help": "Folder to write, new or empty."})
    quantization: str | None = field(
        default=None, metadata={"help": "int8, float16 or another type of CTranslate2; default: float32."}
    )
    allow_drop_bias: bool = field(
        default=False, metadata={"help": "Drop the [CLS] bias of a model, which CTranslate2 cannot compute."}
    )


def make_parser() -> CommandParser:
    return CommandParser(ExportCTranslate2Arguments, "Export a translation model to CTranslate2.", GROUPS, __doc__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args = parse_flags(make_parser(), argv)
    model, tokenizer = load_translator(args.model, dtype="float32", device="cpu")
    print(export_ctranslate2(model, tokenizer, args.output, args.quantization, args.allow_drop_bias))
