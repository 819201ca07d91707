"""Lets coverage see what Arrow's servers call: their threads are not Python's, and Python does not trace them."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SERVERS = "understudy.runtime.wire"


def traced(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any) -> Any:
        if sys.gettrace() is None:
            sys.settrace(threading.gettrace())
        return method(*arguments)

    return call


class Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == SERVERS else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for method in ("do_action", "do_get"):
                    setattr(module.Server, method, traced(getattr(module.Server, method)))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def coverage_init(registry: Any, options: dict[str, str]) -> None:
    sys.meta_path.insert(0, Finder)
