"""The embodiments that Cosmos3's action heads know, the width of their actions, and the canvases of their views.

Figures are those of the release (diffusers 0.42): an embodiment without a width has none that is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ACTION_WIDTHS", "CANVASES", "DOMAINS", "VIEW_POINTS", "canvas_of"]

DOMAINS: Mapping[str, int] = {
    "no_action": 0,
    "av": 1,
    "camera_pose": 2,
    "hand_pose": 3,
    "pusht": 4,
    "libero": 5,
    "umi": 6,
    "bridge_orig_lerobot": 7,
    "droid_lerobot": 8,
    "robomind-franka": 8,
    "galbot": 9,
    "robomind-franka-dual": 12,
    "robomind-ur": 13,
    "agibotworld": 15,
    "agibot_gear_gripper": 15,
    "agibot_gear_gripper_ext": 15,
    "fractal": 20,
}
"""Rows of the action heads' weights, by embodiment."""

ACTION_WIDTHS: Mapping[str, int] = {
    "av": 9,
    "camera_pose": 9,
    "pusht": 2,
    "umi": 10,
    "bridge_orig_lerobot": 10,
    "droid_lerobot": 10,
    "robomind-franka": 10,
    "robomind-franka-dual": 20,
    "robomind-ur": 10,
    "galbot": 30,
    "agibotworld": 29,
    "agibot_gear_gripper": 29,
    "agibot_gear_gripper_ext": 29,
    "fractal": 10,
    "hand_pose": 57,
}
"""Numbers of an action, by embodiment."""

VIEW_POINTS: Mapping[str, str] = {
    "ego_view": "This video is captured from a first-person perspective looking at the scene.",
    "third_person_view": (
        "This video is captured from a third-person perspective looking towards the agent from the front."
    ),
    "wrist_view": "This video is captured from a wrist-mounted camera.",
    "concat_view": "This video contains concatenated views from multiple camera perspectives.",
}
"""How a caption says where the camera is; the action weights were trained with these words."""

CANVASES: Mapping[str, Mapping[float, tuple[int, int]]] = {
    "256p": {
        1.0: (256, 256),
        0.8: (256, 320),
        1.25: (320, 256),
        0.6: (192, 320),
        1.6666666666666667: (320, 192),
    },
    "480p": {
        1.0: (640, 640),
        0.7391304347826086: (544, 736),
        1.3529411764705883: (736, 544),
        0.5769230769230769: (480, 832),
        1.7333333333333334: (832, 480),
    },
    "704p": {
        1.0: (960, 960),
        0.7647058823529411: (832, 1088),
        1.3076923076923077: (1088, 832),
        0.55: (704, 1280),
        1.8181818181818181: (1280, 704),
    },
    "720p": {
        1.0: (960, 960),
        0.7536231884057971: (832, 1104),
        1.3269230769230769: (1104, 832),
        0.5625: (720, 1280),
        1.7777777777777777: (1280, 720),
    },
}
"""Heights and widths of the padded views of each tier, by height over width."""


def canvas_of(tier: str, height: int, width: int) -> tuple[int, int]:
    """Return height and width of the canvas whose shape is nearest to a view's."""
    canvases = CANVASES[tier]
    return canvases[min(canvases, key=lambda ratio: abs(ratio - height / width))]
