"""Run by a Python with SGLang. Standard input: JSON, a list of pairs of a flag and the arguments that give it. Standard
output: for each what SGLang's parser stores for the flag, in a list of one; null where it refuses the arguments."""

import argparse
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

with redirect_stdout(sys.stderr):
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

DESTINATIONS = {flag: action.dest for action in parser._actions for flag in action.option_strings}


def parse(flag, arguments):
    try:
        with redirect_stderr(StringIO()):
            return [getattr(parser.parse_args(["--model-path", "m", *arguments]), DESTINATIONS[flag])]
    except (SystemExit, ValueError):  # the second of a value that is no JSON
        return None


json.dump([parse(flag, arguments) for flag, arguments in json.load(sys.stdin)], sys.stdout)
