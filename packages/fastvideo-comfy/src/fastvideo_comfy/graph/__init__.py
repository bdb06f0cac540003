"""From a workflow file to one flat graph: forms, subgraphs, modes, virtual nodes and widgets are gone after it."""

from fastvideo_comfy.graph.base import FlatGraph, FlatNode, Link, Problem
from fastvideo_comfy.graph.document import Document, parse_document, read_document
from fastvideo_comfy.graph.flatten import flatten

__all__ = ["Document", "FlatGraph", "FlatNode", "Link", "Problem", "flatten", "parse_document", "read_document"]
