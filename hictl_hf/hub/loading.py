"""Whether the sizes in a `config.json` can be those of the weights beside it. What the weights do not hold is made anew
when a model is loaded, so that a damaged or hostile configuration would take all memory; this is asked before that.
"""

from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from ..errors import BadInput

MOST_LAYERS = 1000  # the largest XLM-R has 48
FIX = "Take the config.json that was written with the weights."


def check_sizes(name_or_folder: str | Path) -> None:
    """Raise `BadInput` where a model, by its folder or Hub name, would have more parameters than its weights bytes."""
    name = str(name_or_folder)
    config = AutoConfig.from_pretrained(name)
    layers = max(config.num_hidden_layers, decoder_layers(config))
    if layers > MOST_LAYERS:
        raise BadInput(f"{name}: config.json tells of {layers:,} layers; allowed are {MOST_LAYERS:,}. {FIX}")
    told, there = parameters(config), sum(path.stat().st_size for path in weights_of(name) or Path(name).glob("*.bin"))
    if told > there:
        raise BadInput(
            f"{name}: config.json tells of {told:,} parameters, but the weights have {there:,} bytes; allowed is a "
            f"parameter for each byte at most. {FIX}"
        )


def parameters(config: PreTrainedConfig) -> int:
    """How many the large matrices of a model have, biases and norms aside."""
    size, rows = config.hidden_size, config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    total = size * rows + config.num_hidden_layers * (4 * size**2 + 2 * size * config.intermediate_size)
    total += size * (getattr(config, "projection_size", 0) or 0) + getattr(config, "hard_negative_window", 0)
    if decoder_layers(config):
        size_within = config.decoder_ffn_dim or config.intermediate_size
        total += decoder_layers(config) * (8 * size**2 + 2 * size * size_within)
        total += size * (config.decoder_vocab_size or config.vocab_size)
    return int(total)


def decoder_layers(config: PreTrainedConfig) -> int:
    return config.decoder_layers if config.is_encoder_decoder and hasattr(config, "decoder_layers") else 0


def weights_of(name: str) -> list[Path]:
    """The files in safetensors of a folder, or of a Hub name, which are then in the cache."""
    if Path(name).is_dir():
        return sorted(Path(name).glob("*.safetensors"))
    whole = cached_file(name, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False)
    return [Path(whole)] if whole else list(map(Path, get_checkpoint_shard_files(name, index_of(name))[0]))


def index_of(name: str) -> str:
    return str(cached_file(name, SAFE_WEIGHTS_INDEX_NAME))
