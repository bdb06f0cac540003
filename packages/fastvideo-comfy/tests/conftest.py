"""Workflow files, cards, and samplers in double precision, step by step, written from the formulas."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fastvideo_comfy.compiler import examine, installed_cards
from fastvideo_comfy.graph.document import parse_document, read_document

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def find_card():
    """The installed cards."""
    return installed_cards()


@pytest.fixture(scope="session")
def templates():
    """Paths of all template workflows that ComfyUI publishes."""
    import comfyui_workflow_templates_json

    folder = Path(comfyui_workflow_templates_json.__file__).parent / "templates"
    others = ("index", "fuse_options")
    return [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(others)]


@pytest.fixture
def workflow():
    """Return a function that reads one of the workflow files."""
    return lambda name: read_document(DATA / f"{name}.json")


@pytest.fixture
def look(find_card):
    """Return a function that examines a document, or a workflow given as Python objects."""

    def examine_any(content, **options):
        document = parse_document(content) if isinstance(content, dict) else content
        return examine(document, find_card=find_card, **options)

    return examine_any


@pytest.fixture
def prompt(workflow):
    """The text-to-video workflow in API form, to change at will."""
    return copy.deepcopy(dict(workflow("text_to_video_wan.api").content))


def euler(x, levels, noises, denoise):
    for sigma, after in pairwise(levels):
        x = x + (x - denoise(x, sigma)) / sigma * (after - sigma)
    return x


def lcm(x, levels, noises, denoise):
    for (sigma, after), noise in zip(pairwise(levels), noises, strict=True):
        x = denoise(x, sigma)
        x = after * noise + (1 - after) * x if after > 0 else x
    return x


def dpmpp_2m(x, levels, noises, denoise):
    old = None
    for i, (sigma, after) in enumerate(pairwise(levels)):
        d = denoise(x, sigma)
        t, t_after = -math.log(sigma), math.inf if after == 0 else -math.log(after)
        h = t_after - t
        if old is None or after == 0:
            estimate = d
        else:
            r = (t + math.log(levels[i - 1])) / h
            estimate = (1 + 1 / (2 * r)) * d - old / (2 * r)
        x = after / sigma * x - math.expm1(-h) * estimate
        old = d
    return x


def res_multistep(x, levels, noises, denoise):
    old = None
    for i, (sigma, after) in enumerate(pairwise(levels)):
        d = denoise(x, sigma)
        if old is None or after == 0:
            x = x + (x - d) / sigma * (after - sigma)
        else:
            h = math.log(sigma / after)
            c2 = -math.log(levels[i - 1] / sigma) / h
            phi1 = (math.exp(-h) - 1) / -h
            phi2 = (phi1 - 1) / -h
            x = math.exp(-h) * x + h * ((phi1 - phi2 / c2) * d + phi2 / c2 * old)
        old = d
    return x


def unipc(x, levels, solver, denoise):
    """UniPC in its variance-preserving form, as the published algorithm has it: predict, evaluate, correct."""
    levels = [*levels[:-1], levels[-1] or 0.001]
    order, last = min(3, len(levels) - 2), len(levels) - 1

    def alpha(s):
        return 1 / math.sqrt(1 + s * s)

    def evaluate(x, s):
        return denoise(x / alpha(s), s)

    x = x * alpha(levels[0])
    past = [(levels[0], evaluate(x, levels[0]))]
    for k in range(1, last + 1):
        p = k if k < order else min(order, last + 1 - k)
        s0, m0 = past[-1]
        s = levels[k]
        h = math.log(s0) - math.log(s)
        phi1 = math.expm1(-h)
        b_h = -h if solver == "bh1" else phi1
        r = [(math.log(s0) - math.log(past[-1 - i][0])) / h for i in range(1, p)]
        d = [(past[-1 - i][1] - m0) / r[i - 1] for i in range(1, p)]
        # The order conditions: sum_j rho_j r_j^(i-1) = i! phi_(i+1)(-h) (-h) / B(h), by the series of phi.
        phis = [sum((-h) ** q / math.factorial(q + i + 1) for q in range(40)) for i in range(1, p + 1)]
        b = [math.factorial(i) * phis[i - 1] * -h / b_h for i in range(1, p + 1)]
        nodes = np.array([*r, 1.0])
        matrix = np.array([nodes ** (i - 1) for i in range(1, p + 1)])
        rho_p = [0.5] if p == 2 else list(np.linalg.solve(matrix[:-1, :-1], b[:-1])) if p > 2 else []
        rho_c = [0.5] if p == 1 else list(np.linalg.solve(matrix, b))
        base = alpha(s) * s / (alpha(s0) * s0) * x - alpha(s) * phi1 * m0
        predicted = base - alpha(s) * b_h * sum(rho * one for rho, one in zip(rho_p, d, strict=True))
        if k == last:
            return predicted / alpha(s) / (1 - s)
        m = evaluate(predicted, s)
        past_part = sum(rho * one for rho, one in zip(rho_c[:-1], d, strict=True))
        x = base - alpha(s) * b_h * (past_part + rho_c[-1] * (m - m0))
        past.append((s, m))
    raise AssertionError("there is a last level")


REFERENCES = {
    "euler": euler,
    "ddim": euler,
    "lcm": lcm,
    "dpmpp_2m": dpmpp_2m,
    "res_multistep": res_multistep,
    "uni_pc": lambda x, levels, noises, denoise: unipc(x, levels, "bh1", denoise),
    "uni_pc_bh2": lambda x, levels, noises, denoise: unipc(x, levels, "bh2", denoise),
}


@pytest.fixture(scope="session")
def comfy_references():
    """Samplers by ComfyUI's name: functions of x, levels, noises, and the estimate of x0 at x and a level."""
    return REFERENCES
