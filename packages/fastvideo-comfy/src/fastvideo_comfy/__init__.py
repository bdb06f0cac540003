"""ComfyUI workflows, compiled to programs of FastVideo cards.

Importing it imports no torch: the command line finds it through the entry point `command.comfy`.

    graph      workflow files to one flat graph: both forms, subgraphs, modes, widgets
    fold       values, switches and arithmetic, evaluated
    live       what is live after that
    lower      nodes to requests: model chains, prompts, samplers, cards, outputs
    compiler   all of these together
    program    what a workflow compiles to
    report     what became of every node
    sigmas     ComfyUI's schedules
    samplers   ComfyUI's samplers; needs torch
    cli        `fastvideo comfy …`
"""

from __future__ import annotations

__all__ = ["cli", "compiler", "errors", "fold", "graph", "live", "lower", "program", "report", "samplers", "sigmas"]
