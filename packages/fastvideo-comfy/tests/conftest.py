"""Workflow files, cards, and small graphs in either form."""

from __future__ import annotations

from pathlib import Path

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
    import copy

    return copy.deepcopy(dict(workflow("text_to_video_wan.api").content))
