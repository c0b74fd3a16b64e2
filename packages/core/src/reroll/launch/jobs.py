"""The job of a submission, found again from its receipt."""

from __future__ import annotations

from typing import Any

from reroll.api import JobState, Launcher, PluginError, RerollError
from reroll.launch.folder import Receipt
from reroll.plugins import PluginManager


def launcher_of(receipt: Receipt, plugins: PluginManager) -> Launcher:
    """RerollError where the launcher's plugin is not there, or does not know the options any more."""
    options = dict(receipt.backend)
    name = str(options.pop("name", ""))
    try:
        cls: Any = plugins.get("launchers", name).cls
        made: Launcher = cls(cls.Config(**options))
    except PluginError as error:
        raise RerollError(f"the run was started by {name!r}: {error}") from None
    except ValueError as error:
        raise RerollError(f"the options of {name!r} in the run's receipt cannot be used: {error}") from None
    return made


def state_of(receipt: Receipt, plugins: PluginManager) -> JobState:
    """How the back end sees the job; what it cannot say is `unknown`, with the reason."""
    if receipt.handle is None:
        return JobState("unknown", detail="its submission was broken off")
    try:
        return launcher_of(receipt, plugins).state(receipt.handle)
    except RerollError as error:
        return JobState("unknown", detail=str(error))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        return JobState("unknown", detail=f"its receipt cannot be used: {type(error).__name__}: {error}")
