"""Makes SGLang run on a CPU from published wheels. Python runs this as the server starts.

torchvision: the published wheel is compiled against another build of torch than the one for CPUs. It imports without
its operators but for two, whose shapes it registers unconditionally: those need a schema, which is defined here, right
after torchvision has found out that its operators are missing. Where they do load nothing is defined.

Processes: SGLang spawns its scheduler and detokenizer, since a process that has used CUDA cannot be forked. Here there
is no CUDA; forked, they need not import torch, transformers and SGLang again, which is most of the work of a start.
"""

import importlib.abc
import importlib.util
import sys

TRIGGER = "torchvision.extension"
OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_libraries: list[object] = []  # torch removes the definitions of a library that is collected


class _AfterExtension(importlib.abc.MetaPathFinder):
    """Runs `define_operators` when torchvision.extension has been imported."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != TRIGGER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if not module._has_ops():
                define_operators()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def define_operators():
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        library.define(f"{operator}{SCHEMA}")
    _libraries.append(library)


def fork_children():
    """Has multiprocessing fork where the program asks it to spawn."""
    import multiprocessing

    context = multiprocessing.context._default_context
    set_start_method = context.set_start_method

    def fork_instead(method, force=False):
        set_start_method("fork" if method == "spawn" else method, force)

    context.set_start_method = multiprocessing.set_start_method = fork_instead  # type: ignore[method-assign]


def run_shadowed():
    """Runs the sitecustomize that this one hides, if there is one further along the path."""
    import importlib.machinery
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":  # and not somebody's import of this file by another name
    sys.meta_path.insert(0, _AfterExtension())
    fork_children()
    run_shadowed()
