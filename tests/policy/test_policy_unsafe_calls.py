"""The sources hold no pickle, no inference mode, no hidden state in globals and no stubs."""

from __future__ import annotations

import ast

import pytest

PICKLES = {"_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
TORCH_NAMES = {
    "inference_mode": "tensors made in inference mode cannot enter autograd later; use torch.no_grad",
    "load": "torch.load reads pickle; weights come from safetensors",
    "save": "torch.save writes pickle; state is safetensors and JSON",
}


def find_calls(source):
    """Yield (line number, explanation) for each thing that a source may not do."""
    for node in ast.walk(ast.parse(source)):
        for what in filter(None, (about_import(node), about_torch(node), about_statement(node))):
            yield node.lineno, what


def about_import(node):
    """Explain a forbidden import."""
    names = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module]
    found = [name for name in names if name.split(".")[0] in PICKLES]
    return f"imports {found[0]}, which can run code when it reads" if found else None


def about_torch(node):
    """Explain a forbidden name of torch, as an attribute or imported."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        return TORCH_NAMES.get(node.attr)
    if isinstance(node, ast.ImportFrom) and node.module == "torch":
        return next((TORCH_NAMES[alias.name] for alias in node.names if alias.name in TORCH_NAMES), None)
    return None


def about_statement(node):
    """Explain a forbidden statement or call."""
    if isinstance(node, ast.Global):
        return "changes a global; state belongs to the request"
    if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node):
        return "is a stub"
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
            return f"calls {node.func.id}"
        if any(keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False" for keyword in node.keywords):
            return "allows pickle"
    return None


def test_the_sources_do_nothing_of_the_kind(sources, root, assert_none):
    assert len(sources) > 10
    assert_none(
        "unsafe-call",
        (
            (path.relative_to(root).as_posix(), f"line {number} {what}")
            for path in sources
            for number, what in find_calls(path.read_text())
        ),
    )


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.memory",
        "weights = torch.load(path)",
        "from torch import load",
        "with torch.inference_mode(): pass",
        "@torch.inference_mode()\ndef run(): pass",
        "array = np.load(path, allow_pickle=True)",
        "def run():\n    global cache",
        "def run():\n    raise NotImplementedError",
        "def run():\n    raise NotImplementedError('later')",
        "eval(text)",
    ],
)
def test_each_kind_is_caught(line):
    assert len(list(find_calls(f"x = 1\n{line}\n"))) == 1


@pytest.mark.parametrize("line", ["model.eval()", "json.load(file)", "np.load(path, allow_pickle=False)", "'pickle'"])
def test_harmless_lines_are_not(line):
    assert list(find_calls(line)) == []
