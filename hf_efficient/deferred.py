"""Work that waits until a slow module has been imported by someone who needs it."""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable


def after_import(module: str, callback: Callable[[], None]) -> None:
    """Calls back at once if `module` is imported already, otherwise right after it has been."""
    if module in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _AfterImport(module, callback))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find the module, and has its loader call back when it is done."""

    def __init__(self, module: str, callback: Callable[[], None]):
        self.module, self.callback = module, callback

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
            self.callback()

        spec.loader.exec_module = exec_module
        return spec
