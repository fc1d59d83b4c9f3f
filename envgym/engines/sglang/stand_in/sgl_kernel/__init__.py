"""Stands in for the compiled kernels of SGLang, which are published for CUDA only, in a server on the CPU.

Any name is found here and in any submodule. It is a function that raises NotImplementedError when it is called: the
server imports such names on the CPU but, for dense models without speculative decoding, calls none of them.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class Missing:
    """A kernel that is not here: attributes of it are missing too, and calling it raises."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Missing(f"{self._name}.{attribute}")

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(
            f"{self._name} is a compiled kernel that SGLang has for CUDA only; on the CPU envgym serves dense models "
            "(llama, qwen2, qwen3) without speculative decoding."
        )

    def __repr__(self):
        return f"<missing kernel {self._name}>"


def _attributes_of(module):
    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return Missing(f"{module}.{name}")

    return __getattr__


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of this package, and makes it from nothing."""

    def find_spec(self, fullname, path=None, target=None):
        if not fullname.startswith(f"{__name__}."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return types.ModuleType(spec.name, f"Stands in for {spec.name}.")

    def exec_module(self, module):
        module.__getattr__ = _attributes_of(module.__name__)


__getattr__ = _attributes_of(__name__)
if __name__ == "sgl_kernel":  # and not somebody's import of this file by another name
    sys.meta_path.append(_Submodules())
