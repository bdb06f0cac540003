"""What ComfyUI's front end makes of a prompt's text before it sends it; the API form has it behind it."""

from __future__ import annotations

import re

from fastvideo_comfy.graph.base import FlatGraph, Problem

__all__ = ["front_end_text"]

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_CHOICE = re.compile(r"(?<!\\)[{}]")


def front_end_text(text: str, node_id: str, flat: FlatGraph) -> str:
    """Drop comments and unescape braces; `{a|b}`, from which the front end draws at random, is a problem."""
    plain = _COMMENT.sub("", text)
    if _CHOICE.search(plain):
        flat.problems.append(
            Problem(
                node_id,
                "random_prompt",
                "the text has `{…}`, from which ComfyUI draws one alternative at random",
                "text",
                allowed="one text; \\{ and \\} for braces",
            )
        )
    return plain.replace("\\{", "{").replace("\\}", "}")
