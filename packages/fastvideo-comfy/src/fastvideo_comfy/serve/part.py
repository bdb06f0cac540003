"""The part of a server that answers as ComfyUI does."""

from __future__ import annotations

from fastvideo_comfy.serve.compiling import ServedCompiler
from fastvideo_comfy.serve.config import ComfySection
from fastvideo_comfy.serve.desk import Desk
from fastvideo_comfy.serve.hub import Hub
from fastvideo_comfy.serve.object_info import ObjectInfo
from fastvideo_comfy.serve.products import offer_products
from fastvideo_comfy.serve.routes import make_routes
from fastvideo_core.runtime.serving import ServerHost, ServerPart

__all__ = ["make_part"]


def make_part(host: ServerHost) -> ServerPart:
    """Return the routes, and saved workflows as tasks.

    Raises:
        PluginError: ComfyUI's samplers are not on.
        ConfigError: A product is none, or does not compile for the card.
    """
    section = host.section if isinstance(host.section, ComfySection) else ComfySection()
    compiler, hub = ServedCompiler(host, section), Hub()
    desk = Desk(host, compiler, hub, max_history=section.max_history)
    return ServerPart(
        make_routes(host, desk, ObjectInfo(compiler)),
        offer_products(section.products, compiler, desk.room),
        hub.close,
    )
