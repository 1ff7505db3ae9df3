"""Prints the thumbprints of the corpus on a Python that has none of our dependencies.

Run as a program. Stand-ins replace what `thumbprint.py` imports; how values are encoded does not
matter here, because everything that is compared went through the same stand-in.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path


class _Struct:
    def __init_subclass__(cls, **settings):
        pass

    def __init__(self, *values):
        for name, value in zip(type(self).__annotations__, values, strict=False):
            setattr(self, name, value)


def _encode(value, path=()):
    try:
        return json.dumps(value, sort_keys=True).encode()
    except TypeError as error:
        raise _Refused(str(error)) from error


class _Refused(Exception):
    def __init__(self, message, *, path=(), hint=None):
        super().__init__(message)


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
    return module


def stand_in(name, **names):
    sys.modules[name] = module = types.ModuleType(name)
    vars(module).update(names)
    return module


if __name__ == "__main__":
    stand_in("msgspec", Struct=_Struct)
    stand_in("holdfast")
    codec = types.SimpleNamespace(
        encode_sorted=_encode, encode=_encode, encode_plain=_encode, Thawable=(), DEPTH_MAX=100
    )
    stand_in("holdfast.core", codec=codec)
    stand_in("holdfast.errors", UsageError=_Refused, ValueDomainError=_Refused, show_value=repr)
    thumbprint, corpus = load(sys.argv[1]), load(sys.argv[2])
    found = {name: thumbprint.code_of(one) for name, one in corpus.CORPUS.items()}
    print(
        json.dumps({name: [code.thumb, code.parts, code.untracked] for name, code in found.items()})
    )
