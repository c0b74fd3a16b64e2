"""The tools of the installed plugins, made when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reroll.api import PluginError, RunFile, Selection, Tool


class InstalledTools(Mapping[str, Tool]):
    """Name → tool. Those that the run file lists have its options, the others their defaults.

    Args:
        listed: `data.tools`.
    """

    def __init__(self, run: RunFile, listed: Sequence[Selection]) -> None:
        self._run = run
        self._selections = {item.name: item for item in listed}
        self._made: dict[str, Tool] = {}

    def __getitem__(self, name: str) -> Tool:
        if name not in self._made:
            try:
                self._made[name] = self._run.make("tools", self._selections.get(name, Selection(name=name)))
            except PluginError as error:
                raise KeyError(str(error)) from error
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.names("tools"))

    def __len__(self) -> int:
        return len(self._run.names("tools"))
