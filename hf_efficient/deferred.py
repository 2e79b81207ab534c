"""Work that waits until slow modules have been imported by someone who needs them."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable


def after_import(module: str, callback: Callable[[], None], needs: Iterable[str] = ()) -> None:
    """Calls back once, as soon as `module` is imported: at once if it is already.

    `needs` are modules that the callback imports. One of them may be what imports `module`; it is only half there
    then, so the callback waits until it is whole.
    """
    _Deferred(module, callback, needs)


class _Deferred:
    def __init__(self, module: str, callback: Callable[[], None], needs: Iterable[str]):
        self.module, self.callback, self.waits_for = module, callback, {module, *needs}
        for name in self.waits_for - _imported():
            sys.meta_path.insert(0, _Watcher(name, self.attempt))
        self.attempt()

    def attempt(self, finished: str | None = None) -> None:
        half = {name for name in self.waits_for & sys.modules.keys() if _is_half_imported(name)} - {finished}
        if self.callback is not None and self.module in sys.modules and not half:
            callback, self.callback = self.callback, None
            callback()


def _imported() -> set[str]:
    return {name for name in sys.modules if not _is_half_imported(name)}


def _is_half_imported(name: str) -> bool:
    return getattr(getattr(sys.modules[name], "__spec__", None), "_initializing", False)


class _Watcher(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and has its loader report when it is done."""

    def __init__(self, module: str, report: Callable[[str], None]):
        self.module, self.report = module, report

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self.report(name)

        spec.loader.exec_module = exec_module
        return spec
