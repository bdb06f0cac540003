"""Only the driver iterates over the steps of a loop.

A static check can only be as good as the names: it looks for Python loops that call a step, or fold one in, and for
those that run over a schedule. A comprehension over a batch takes one step of each request and is fine; only one that
carries a value from turn to turn can be a loop over steps. Training code has its optimizer's steps; its folders are
listed in exceptions.toml.
"""

from __future__ import annotations

import ast

import pytest

DRIVER = "packages/fastvideo-core/src/fastvideo_core/loop/driver.py"
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
STEP_METHODS = {"advance", "next", "run_step", "step"}
SCHEDULES = {"num_inference_steps", "num_steps", "timesteps"}


def find_loops(source):
    """Yield (line number, explanation) for each loop over steps in a source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, LOOPS) or (isinstance(node, COMPREHENSIONS) and carries_a_value(node)):
            call = next(filter(None, map(step_call, repeated(node))), None)
            if call:
                yield node.lineno, f"calls {call} in a loop"
            elif schedules := sorted(SCHEDULES & set(iterated_names(node))):
                yield node.lineno, f"iterates over {', '.join(schedules)}"


def carries_a_value(comprehension):
    """Say whether a comprehension assigns to a name that outlives a turn."""
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(comprehension))


def repeated(loop):
    """Yield the nodes inside a loop that run once a turn."""
    for part in ast.iter_child_nodes(loop):
        yield from ast.walk(part)


def step_call(node):
    """Return the name of the step function that a node calls, if it does."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name if name in STEP_METHODS or name.endswith("_step") else None
    if isinstance(node.func, ast.Name):  # `next(iterator)` is Python's own
        return node.func.id if node.func.id == "step" or node.func.id.endswith("_step") else None
    return None


def iterated_names(loop):
    """Yield the names in the expression that a `for` statement runs over."""
    for node in ast.walk(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else ():
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_only_the_driver_iterates_over_steps(sources, root, assert_none):
    assert root / DRIVER in sources
    assert_none(
        "step-loop",
        (
            (path.relative_to(root).as_posix(), f"line {number} {what}")
            for path in sources
            for number, what in find_loops(path.read_text())
            if path != root / DRIVER
        ),
    )


@pytest.mark.parametrize(
    "code",
    [
        "for t in timesteps:\n    x = model(x, t)",
        "for t in scheduler.timesteps:\n    x = model(x, t)",
        "for i in range(num_inference_steps):\n    x = model(x)",
        "for i, t in enumerate(state.timesteps):\n    x = model(x, t)",
        "while True:\n    plan = loop.next(state)",
        "while not done:\n    state = loop.advance(state, result)",
        "for sigma in sigmas:\n    x = unipc_step(x, sigma)",
        "for sigma in sigmas:\n    if ok:\n        x = sampler.step(x, sigma)",
        "xs = [x := sampler.step(x, sigma) for sigma in sigmas]",
        "async def f():\n    async for t in source:\n        x = body.run_step(t)",
    ],
)
def test_a_loop_over_steps_is_caught(code):
    assert len(list(find_loops(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "x = sampler.step(x)",
        "xs = [sampler.step(x) for x in batch]",
        "for block in blocks:\n    x = block(x)",
        "for frame in frames:\n    item = next(iterator)",
        "sigmas = [shift(i) for i in range(num_steps)]",
    ],
)
def test_other_loops_are_not(code):
    assert list(find_loops(code)) == []


def test_the_driver_itself_is_recognised(root):
    assert "while True" in (root / DRIVER).read_text()
    assert list(find_loops("while True:\n    plan = self.loop.next(state)"))
