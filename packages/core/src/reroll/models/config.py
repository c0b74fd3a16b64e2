"""`[model]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from reroll.api import ConfigSection, Problem, RunFile
from reroll.models.files import ModelError, resolve_model


class ModelSection(ConfigSection):
    section: ClassVar[str] = "model"

    path: str
    """Starting checkpoint: a Hugging Face directory, a GGUF file, `builtin:NAME`, or
    `package:MODULE/FILE` for a file that an installed package ships."""
    chat_template: Path | None = None
    """A Jinja file to use instead of the model's own chat template."""

    def chat_template_text(self) -> str | None:
        """The template to use instead of the model's own, None for that."""
        return self.chat_template.read_text("utf-8") if self.chat_template else None

    def pinned(self) -> Mapping[str, Any]:
        path = Path(self.path).expanduser()
        return {"path": str(path.absolute())} if path.exists() else {}

    def validate_files(self, run: RunFile, thorough: bool) -> Iterator[Problem]:
        try:
            resolve_model(self.path).check()
        except ModelError as error:
            yield Problem("model.path", str(error))
        if self.chat_template and not self.chat_template.is_file():
            yield Problem("model.chat_template", f"{str(self.chat_template)!r} is no file")
