"""A node pack for ComfyUI: FastVideo's models inside a ComfyUI workflow.

ComfyUI loads this folder from its `custom_nodes`; link or copy it there:

    ln -s "$(python -c 'import fastvideo_comfy.node_pack as p; print(p.__path__[0])')" custom_nodes/fastvideo
"""

from __future__ import annotations

from fastvideo_comfy.node_pack.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
