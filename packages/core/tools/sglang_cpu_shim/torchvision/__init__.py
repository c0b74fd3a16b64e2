"""In place of torchvision, which SGLang and timm import for models that see images; a text model calls none of it.

Any module below `torchvision` can be imported, and any name taken from it: a class that cannot be made.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__version__ = "0"


class Absent(type):
    """Of a name that only stands for something: its attributes do as well."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__qualname__}.{name}")

    def __call__(cls, *_, **__):
        raise NotImplementedError(f"{cls.__qualname__}: this environment has no torchvision")


def absent(name):
    return type.__new__(Absent, name.rpartition(".")[2], (), {"__qualname__": name, "__module__": __name__})


class AbsentModule(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{self.__name__}.{name}")


class Submodules(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Submodules())
sys.modules[__name__].__class__ = AbsentModule
