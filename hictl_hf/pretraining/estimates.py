"""Memory and time of pre-training on GPUs, computed from sizes: lower limits, which docs/scale.md explains.

A pair has 25 tokens on each side, so with special tokens x, y and x∘y are 108. Activations are 24 · d + 4.5 · f bytes a
token and layer, counted from the code for CUDA autocast with flash-attention: seven bf16 vectors of size d (inputs of
q, k and v, these, and the output of attention), two fp32 ones before the layer norms, two dropout masks, and the
feed-forward part of size f. With checkpointing one fp32 vector a layer stays, and one layer is recomputed at a time.
The sentence level holds 10 bytes an entry of its matrix: two fp32 matrices and two of booleans. The all-reduce of the
word embeddings cannot overlap with the backward pass, because their gradient is complete only at its end.
"""

from collections.abc import Sequence
from typing import NamedTuple

PAIR = (27, 27, 54)  # tokens of x, y and x∘y
GPUS = {  # FLOP/s in bf16 and in fp32, bytes/s of memory: the makers' peaks; the share of FLOP/s assumed
    "A100": (312e12, 19.5e12, 2.0e12, 0.5),
    "H100": (989e12, 67e12, 3.35e12, 0.33),
}


class Shape(NamedTuple):
    """The sizes of an encoder: layers, d, f of the feed-forward part, V words.

    `counted`: parameters of the layers, and all in training; `None`: as XLM-R has them. `inputs`: how many are encoded
    of an example, sentences alone and x∘y, which a word level that reads it unmasked encodes once more. `lm`: whether
    masked tokens reach the head.
    """

    layers: int
    d: int
    f: int
    words: int
    counted: tuple[int, int] | None = None
    inputs: tuple[int, int] = (2, 1)
    lm: bool = True

    @property
    def encoder(self) -> int:
        """Parameters of the layers."""
        if self.counted:
            return self.counted[0]
        return self.layers * (4 * self.d * self.d + 2 * self.d * self.f + 9 * self.d + self.f)

    def row(self, alone: int, joined: int) -> tuple[int, ...]:
        """The tokens of each input of an example, given those of a sentence and of x∘y."""
        return (alone,) * self.inputs[0] + (joined,) * self.inputs[1]

    @property
    def embeddings(self) -> int:
        return self.words * self.d

    @property
    def parameters(self) -> int:
        """All parameters in training, with the head of the language model and the projection."""
        if self.counted:
            return self.counted[1]
        return self.encoder + self.words * (self.d + 1) + 2 * self.d * self.d + 520 * self.d


def gigabytes(
    shape: Shape, row: Sequence[int], pairs: int = 128, gpus: int = 8, contrasted: int | None = None
) -> list[float]:
    """Gigabytes on one GPU: state, E and head, activations without and with checkpointing, sentence level.

    `contrasted`: pairs whose sentences are contrasted at once; `None`: those of all GPUs.
    """
    tokens, sentences = pairs * sum(row), 2 * (contrasted or pairs * gpus)
    copied = 4 if gpus > 1 else 0  # by DDP
    state = (4 + 4 + 8 + copied) * shape.parameters  # weights, gradients, moments, DDP's buckets
    # gradient of E before DDP's bucket, bf16 copy; a block of logits and their softmax
    head = (copied + 4 + 2 * shape.lm) * shape.embeddings + shape.lm * (2 + 2) * 2**28
    layer = 24 * shape.d + 4.5 * shape.f
    activations = layer * shape.layers * tokens, (4 * shape.d * shape.layers + layer) * tokens
    return [number / 1e9 for number in (state, head, *activations, 10 * sentences**2)]


def milliseconds(
    shape: Shape, gpu: str, pairs: int = 128, gpus: int = 8, bandwidth: float = 200e9, contrasted: int | None = None
) -> list[float]:
    """Milliseconds of a step: encoder and head, sentence level, AdamW, all-reduce after the backward pass.

    `contrasted`: as in `gigabytes`.
    """
    bf16, fp32, memory, share = GPUS[gpu]
    row = shape.row(PAIR[0], PAIR[-1])
    attention = 12 * shape.layers * shape.d * sum(length**2 for length in row)
    masked = shape.lm * 0.25 * (PAIR[-1] - 4)  # a quarter of x∘y without its special tokens
    head = 6 * masked * (shape.embeddings + shape.d * shape.d)
    compute = pairs * (6 * shape.encoder * sum(row) + attention + head) / (share * bf16)
    # 4 d FLOP and 240 bytes of memory traffic an entry of the Gram matrix, counted on a CPU
    contrast = (2 * (contrasted or pairs * gpus)) ** 2 * (4 * shape.d / (share * fp32) + 240 / memory)
    reduce = 2 * (gpus - 1) / gpus * 4 / bandwidth  # of one parameter
    late = reduce * shape.embeddings + max(0, reduce * (shape.parameters - shape.embeddings) - 2 / 3 * compute)
    return [1e3 * seconds for seconds in (compute, contrast, 28 * shape.parameters / memory, late)]
