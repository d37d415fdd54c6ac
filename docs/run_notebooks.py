"""Run the notebooks and keep what they print and draw: python docs/run_notebooks.py docs/notebooks/*.ipynb"""

import base64
import io
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

WIDTH = 900  # pixels of a picture that is kept


def run(path: Path, folder: str | Path) -> NotebookNode:
    """The notebook with its outputs, run from top to bottom in this folder; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=600, record_timing=False, resources=place).execute()


def without_noise(notebook: NotebookNode) -> NotebookNode:
    """Without progress bars and warnings, and with small pictures."""
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = list(of_interest(cell.outputs))
    return notebook


def of_interest(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Pictures and results, and what was printed before each as one text."""
    for is_printed, group in groupby(
        (output for output in outputs if output.get("name") != "stderr"), key=lambda output: "text" in output
    ):
        if is_printed:
            texts = list(group)
            texts[0].text = "".join(output.text for output in texts)
            yield texts[0]
            continue
        for output in group:
            if "image/png" in output.data:
                output.data["image/png"] = smaller(output.data["image/png"])
            yield output


def smaller(png: str) -> str:
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.thumbnail((WIDTH, WIDTH))
    picture.quantize(64).save(written := io.BytesIO(), "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with TemporaryDirectory() as folder:
            nbformat.write(without_noise(run(Path(name), folder)), name)
