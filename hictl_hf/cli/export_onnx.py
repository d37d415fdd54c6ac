"""`hictl export-onnx`: export the encoder to ONNX (`embedding.onnx_export.export_onnx`).

hictl export-onnx --model runs/demo/checkpoint --output runs/demo-onnx
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..embedding.encoder import load_encoder
from ..embedding.onnx_export import check_packages, export_onnx
from ..files import new_folder
from ..parsing import CommandParser, parse_flags

GROUPS = {"input and output": ("model", "output")}


@dataclass
class ExportOnnxArguments:
    """Arguments of `hictl export-onnx`."""

    model: str = field(metadata={"help": "Folder or Hub name of an encoder that HiCTL trains."})
    output: str = field(metadata={"help": "Folder to write, new or empty."})


def make_parser() -> CommandParser:
    return CommandParser(ExportOnnxArguments, "Export the plain encoder with its pooling to ONNX.", GROUPS, __doc__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args = parse_flags(make_parser(), argv)
    check_packages()
    folder = new_folder(args.output)
    print(export_onnx(*load_encoder(args.model, device="cpu"), folder))
