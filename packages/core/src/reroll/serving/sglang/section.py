"""`[sglang]`: options of SGLang itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from reroll.api import ConfigSection, Problem
from reroll.api.sections import RunFile

if TYPE_CHECKING:
    from reroll.serving.sglang.options import Option, Options

MODEL = "every engine serves model.path"
ADDRESS = "reroll binds each server to a free port on loopback; to serve elsewhere, start servers and give their URLs"
SECRET = "a command line shows it to every user of the machine; reroll makes a key for each server by itself"
SEVERAL_MACHINES = "reroll starts a server on one machine; one that spans several is started apart and given by its URL"
PLAIN_HTTP = "reroll speaks plain HTTP to the servers that it starts, over loopback"


class SGLangSection(ConfigSection):
    """Any option of SGLang's own parser (release 0.5.23), with underscores: `mem_fraction_static = 0.05`,
    `attention_backend = "torch_native"`, `enable_deterministic_inference = true`. Options with several values take
    lists, those that take JSON take tables. `reroll plan` checks names, types and choices without SGLang; what SGLang
    makes of them is said in its documentation. They hold for every server that the run starts."""

    section: ClassVar[str] = "sglang"
    model_config = ConfigDict(extra="allow")
    refused: ClassVar[Mapping[str, str]] = {
        "model_path": MODEL,
        "tokenizer_path": f"{MODEL}, with its tokenizer",
        "host": ADDRESS,
        "port": ADDRESS,
        "api_key": SECRET,
        "admin_api_key": SECRET,
        "ssl_keyfile_password": PLAIN_HTTP,
        "ssl_keyfile": PLAIN_HTTP,
        "ssl_certfile": PLAIN_HTTP,
        "smg_grpc_mode": PLAIN_HTTP,
        "watermark_config": "it may hold a key, and a command line shows it to every user of the machine",
        "weight_version": "reroll numbers the weights that it publishes",
        "config": "its file would set options that nothing here checks; write them into this section",
        "nnodes": SEVERAL_MACHINES,
        "node_rank": SEVERAL_MACHINES,
        "dist_init_addr": SEVERAL_MACHINES,
    }

    def problems(self, run: RunFile) -> Iterator[Problem]:
        if not self.model_extra:
            return
        from reroll.serving.config import ServingSection
        from reroll.serving.sglang.options import sglang_options

        serving, options = run.get(ServingSection), sglang_options()
        if serving.engine.name != "sglang":
            yield Problem(
                "sglang",
                f"does nothing: serving.engine is {serving.engine.name!r}",
                'set serving.engine = "sglang", or leave the section out',
            )
        elif serving.urls:
            yield Problem(
                "sglang",
                "does nothing: the servers of serving.urls run already",
                "give them these options where they are started",
            )
        first: dict[str, str] = {}
        for key, value in self.model_extra.items():
            option = options.by_key.get(key)
            if option is None:
                yield Problem(f"sglang.{key}", f"is no option of SGLang {options.release}", options.nearest(key))
            elif (other := first.setdefault(option.name, key)) != key:
                yield Problem(
                    f"sglang.{key}", f"is another name of {other}, which is given too", "leave one of them out"
                )
            else:
                yield from self._option_problems(key, value, option, options, serving.transport.name)

    def _option_problems(
        self, key: str, value: Any, option: Option, options: Options, transport: str
    ) -> Iterator[Problem]:
        place = f"sglang.{key}"
        if reason := self.refused.get(option.name):
            yield Problem(place, f"is refused: {reason}")
        elif option.deprecated:
            yield Problem(place, f"is deprecated in SGLang {options.release}", f"SGLang says: {option.deprecated}")
        elif wrong := option.wrong(key, value):
            yield Problem(place, *wrong)
        elif option.name == "load_format" and value == "dummy":
            # The first collection would come of weights that nobody knows: a launched server is taken at its word that
            # it serves the model.
            yield Problem(place, 'is "dummy", which makes weights up instead of reading them', "leave it out")
        elif option.name in ("tp_size", "pp_size", "dp_size") and value < 1:
            yield Problem(place, f"is {value}, but must be at least 1")
        elif option.name == "dp_size" and value != 1 and transport == "distributed":
            yield Problem(
                place,
                f"is {value}, but SGLang takes weights from a process group at 1 only",
                "set serving.num_engines for more servers, or another serving.transport",
            )

    def by_name(self) -> dict[str, Any]:
        """The given values under SGLang's own names, of which several options have more than one."""
        from reroll.serving.sglang.options import sglang_options

        given = self.model_extra or {}
        by_key = sglang_options().by_key if given else {}
        return {by_key[key].name: value for key, value in given.items()}

    def arguments(self) -> list[str]:
        """The options for SGLang's command line; they were checked when the run file was loaded."""
        from reroll.serving.sglang.options import sglang_options

        given = self.model_extra or {}
        by_key = sglang_options().by_key if given else {}
        return [argument for key, value in given.items() for argument in by_key[key].arguments(key, value)]
