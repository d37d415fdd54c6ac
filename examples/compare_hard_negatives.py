"""Hard negatives: as p_avg rises, λ falls, negatives come closer, and the loss stays useful.

python examples/compare_hard_negatives.py
"""

import torch

from hictl_hf.models import in_batch_negatives, interpolate_hard_negatives, sentence_contrast

ZETA, PAIRS, SIZE = 0.9, 64, 32


def main() -> list[tuple[float, float, float, float]]:
    """Return for rising p_avg: mean λ, the hardest negative's mean cosine, and the sentence loss at τ = 0.05."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(PAIRS, SIZE, generator=random)
    y = x + 0.5 * torch.randn(PAIRS, SIZE, generator=random)  # translations: close, not equal
    sentences, negatives = torch.cat([x, y]), in_batch_negatives(torch.arange(2 * PAIRS))
    lines = []
    for p_avg in (0.0, 0.25, 0.5, 0.75, 1.0):
        scores, lambdas = interpolate_hard_negatives(sentences, negatives, ZETA * p_avg)
        hardest = scores.masked_fill(~negatives, -torch.inf).amax(1)
        loss, _ = sentence_contrast(sentences, negatives, temperature=0.05, strength=ZETA * p_avg)
        lines.append((p_avg, float(lambdas[negatives].mean()), float(hardest.mean()), float(loss)))
    return lines


if __name__ == "__main__":
    print("p_avg  mean λ  hardest negative  sentence loss")
    for p_avg, mean_lambda, hardest, loss in main():
        print(f"{p_avg:5.2f}  {mean_lambda:6.2f}  {hardest:16.2f}  {loss:13.3f}")
