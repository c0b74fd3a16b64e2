"""Where a model's files are and what they say. No torch: the controller and `validate` use this."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from reroll.api import RerollError
from reroll.config.folders import user_cache

BUILTIN = "builtin:"
PACKAGE = "package:"


class ModelError(RerollError, ValueError):
    """A model's files are missing or do not belong together."""


@dataclass(frozen=True)
class ModelFiles:
    """A Hugging Face model directory, read without torch."""

    directory: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return _read_json(self.directory / "config.json")

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        path = self.directory / "tokenizer_config.json"
        return _read_json(path) if path.exists() else {}

    @property
    def tokenizer(self) -> Path:
        path = self.directory / "tokenizer.json"
        if not path.exists():
            raise ModelError(
                f"{path} does not exist: save the model's fast tokenizer beside it "
                "(AutoTokenizer.from_pretrained(…).save_pretrained(…))"
            )
        return path

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids at which a response ends: of the model's configuration and of its generation
        configuration, which may name more than one."""
        path = self.directory / "generation_config.json"
        given = [self.config.get("eos_token_id"), (_read_json(path) if path.exists() else {}).get("eos_token_id")]
        ids: set[int] = set()
        for value in given:
            ids.update(value if isinstance(value, list) else [] if value is None else [value])
        if not all(isinstance(token, int) for token in ids):
            raise ModelError(f"{self.directory}: eos_token_id = {sorted(map(str, ids))} must be token ids")
        return tuple(sorted(ids))

    @property
    def max_context(self) -> int | None:
        """Most positions that the model was made for, where its configuration says so."""
        value = self.config.get("max_position_embeddings")
        return value if isinstance(value, int) and value > 0 else None

    @cached_property
    def chat_template(self) -> str | None:
        path = self.directory / "chat_template.jinja"
        if path.exists():
            try:
                return path.read_text("utf-8")
            except UnicodeDecodeError:
                raise ModelError(f"{path} is not UTF-8 text") from None
        found = self.tokenizer_config.get("chat_template")
        if isinstance(found, list):
            named = {item.get("name"): item.get("template") for item in found if isinstance(item, dict)}
            found = named.get("default")
        if found is not None and not isinstance(found, str):
            raise ModelError(f"{self.directory / 'tokenizer_config.json'}: chat_template is no text")
        return found

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """Names of special tokens, as chat templates use them, → their text."""
        found: dict[str, str] = {}
        for key, value in self.tokenizer_config.items():
            if key.endswith("_token") and value is not None:
                text = value.get("content") if isinstance(value, dict) else value
                if isinstance(text, str):
                    found[key] = text
        return found

    @property
    def generation_config_sha256(self) -> str:
        """Digest of `generation_config.json`, empty where there is none."""
        path = self.directory / "generation_config.json"
        return sha256_file(path) if path.exists() else ""

    def inventory(self) -> dict[str, dict[str, Any]]:
        """File name → size, modification time and, for JSON files, SHA-256."""
        listed: dict[str, dict[str, Any]] = {}
        for path in sorted(self.directory.iterdir()):
            if path.is_file():
                stat = path.stat()
                listed[path.name] = {"size": stat.st_size, "mtime": stat.st_mtime}
                if path.suffix == ".json":
                    listed[path.name]["sha256"] = sha256_file(path)
        return listed

    def check(self) -> None:
        """ModelError if the directory cannot be trained and served from."""
        if not self.config.get("architectures"):
            raise ModelError(f"{self.directory / 'config.json'} names no architecture: is it a language model?")
        weights = [*self.directory.glob("*.safetensors"), *self.directory.glob("pytorch_model*.bin")]
        if not weights:
            raise ModelError(f"{self.directory} holds no weights: expected *.safetensors")
        if not self.eos_token_ids:
            raise ModelError(
                f"{self.directory / 'config.json'} has no eos_token_id: a response would never end by itself; set it"
            )
        if not self.tokenizer.exists():
            raise ModelError(f"{self.tokenizer} does not exist")


def resolve_model(path: str) -> ModelFiles:
    """The directory that `model.path` means; a GGUF file is converted once into a cache.

    Args:
        path: a directory, a `.gguf` file, `builtin:NAME`, or `package:MODULE/FILE`, a file or folder
            that an installed package ships.
    """
    if path.startswith(BUILTIN):
        name = path.removeprefix(BUILTIN)
        folder = Path(str(resources.files("reroll.models"))) / "builtin"
        known = sorted(item.name for item in folder.iterdir() if (item / "config.json").exists())
        if name not in known:
            raise ModelError(f"{path!r} is no built-in model; there are: {', '.join(BUILTIN + item for item in known)}")
        return ModelFiles(folder / name)
    found = located(path)
    if not found.exists():
        raise ModelError(
            f"{found} does not exist; model.path is a Hugging Face directory or a GGUF file on this machine"
        )
    if found.suffix == ".gguf":
        return ModelFiles(_converted(found.resolve()))
    if not (found / "config.json").exists():
        raise ModelError(f"{found} holds no config.json: it is no Hugging Face model directory{_of_run(found)}")
    return ModelFiles(found.resolve())


def located(path: str) -> Path:
    """The file or folder that a `model.path` other than a built-in one names; it need not exist."""
    try:
        return _in_package(path.removeprefix(PACKAGE)) if path.startswith(PACKAGE) else Path(path).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{path}: {error}") from None


def _of_run(folder: Path) -> str:
    """What to do where somebody gave a run's folder, or a checkpoint, for the model in it."""
    if (folder / "model" / "config.json").exists():
        return f"; the run's model is in {folder / 'model'}"
    if (folder / "checkpoints").is_dir() or (folder / "manifest.json").exists():
        return f"; reroll export {folder} --to DIR writes one from a checkpoint"
    return ""


def _in_package(path: str) -> Path:
    module, _, file = path.partition("/")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"package {module!r} is not installed: pip install {module.replace('_', '-')}")
    return Path(next(iter(spec.submodule_search_locations))) / file


def converted_directory(gguf: Path) -> Path:
    """Where a GGUF file is converted to."""
    stat = gguf.stat()
    digest = hashlib.sha256(f"{gguf}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    return user_cache() / "gguf" / f"{gguf.stem}-{digest}"


def model_directory(path: str) -> Path:
    """The directory that `resolve_model` will give, whether or not it is there yet; nothing is converted."""
    if path.startswith(BUILTIN):
        return Path(str(resources.files("reroll.models"))) / "builtin" / path.removeprefix(BUILTIN)
    found = located(path)
    return converted_directory(found.resolve()) if found.suffix == ".gguf" and found.exists() else found.resolve()


def _converted(gguf: Path) -> Path:
    """The Hugging Face directory made from a GGUF file, in a process of its own: it needs torch."""
    target = converted_directory(gguf)
    if not (target / "config.json").exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "reroll.models.gguf", str(gguf), str(target)]
        quiet = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
        done = subprocess.run(command, capture_output=True, text=True, env=quiet)
        if done.returncode:
            raise ModelError(f"{gguf} could not be converted: {_last_line(done.stderr)}")
    return target


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


MIB = 1 << 20
BLOCK = 1 << 16


def sampled_sha256(path: Path) -> str:
    """Digest of a file's size, its first and last MiB and 64 blocks of 64 KiB spread evenly between them: tells large
    files apart without reading all of them. Of a smaller file everything is read."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size}:".encode())
    with path.open("rb") as file:
        if size <= 2 * MIB + 64 * BLOCK:
            digest.update(file.read())
            return digest.hexdigest()
        digest.update(file.read(MIB))
        for number in range(64):
            file.seek(MIB + (size - 2 * MIB - BLOCK) * number // 63)
            digest.update(file.read(BLOCK))
        file.seek(size - MIB)
        digest.update(file.read(MIB))
    return digest.hexdigest()


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds {type(found).__name__}, not a table")
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
