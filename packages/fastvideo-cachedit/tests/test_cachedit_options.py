from __future__ import annotations

import subprocess
import sys

import pytest

from fastvideo_cachedit import blocks_plugin, steps_plugin
from fastvideo_cachedit.options import BlockOptions, StepOptions
from fastvideo_core.errors import ParameterError, PluginError
from fastvideo_core.extend.extensions import Extensions
from fastvideo_testing.samples import REUSE, extensions_of

BLOCKS, STEPS = "interceptor.cachedit", "interceptor.cachedit-steps"


def checked(options, request=None, **parameters):
    extensions = Extensions.load({BLOCKS: options})
    given = {} if request is None else {BLOCKS: request}
    return extensions.check_request(given, exact=False, parameters={"num_inference_steps": 30, **parameters})[
        "cachedit"
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"treshold": 0.1}, f"plugins.{BLOCKS}.treshold=0.1: the plugin has no such option; .*nearest: threshold"),
        ({"threshold": 0}, f"plugins.{BLOCKS}.threshold=0: .*greater than 0"),
        ({"threshold": "high"}, "threshold='high': .*valid number"),
        ({"first_blocks": 0}, "first_blocks=0: .*greater than or equal to 1"),
        ({"taylor_order": 4}, "taylor_order=4: .*less than or equal to 3"),
        ({"forecast": "tailor"}, "forecast='tailor': .*'none', 'taylor' or 'foca'"),
        (
            {"mask": "mediun"},
            "mask='mediun': .*allowed: slow, medium, fast, ultra, or a list of 1 and 0.*nearest: medium",
        ),
        ({"mask": 3}, "mask=3: .*not a mask; allowed: slow"),
        ({"mask": []}, "not a mask"),
        ({"mask": [1, 2]}, "1, which computes a step, and 0, which uses again"),
        ({"mask": [True, False]}, "not a mask"),
        ({"mask": [0, 1]}, "a mask begins with 1"),
        ({"mask": [1, 0, 1]}, f"plugins.{BLOCKS}.mask=.*: 3 numbers for 30 steps; allowed: 30 numbers, or one of slow"),
    ],
)
def test_wrong_options_are_refused_by_name(options, why):
    with pytest.raises(ParameterError, match=why):
        checked(options)
    if "treshold" not in options:
        with pytest.raises(ParameterError, match=why):
            checked({}, options)


def test_a_request_may_set_each_option_and_leaves_the_others():
    extensions = Extensions.load({BLOCKS: {"threshold": 0.3, "warmup_steps": 2}})
    assert set(extensions.interceptors["cachedit"].spec.request_options) == set(BlockOptions.model_fields)
    assert set(steps_plugin.SPEC.request_options) == set(StepOptions.model_fields)
    options = checked({"threshold": 0.3, "warmup_steps": 2}, {"threshold": 0.1, "mask": "fast"})
    assert (options.threshold, options.warmup_steps, options.mask) == (0.1, 2, "fast")
    assert checked({"mask": [1, 0] * 15}).mask == (1, 0) * 15


def test_too_few_steps_are_refused():
    with pytest.raises(
        ParameterError, match="num_inference_steps=7: too few for the interceptor cachedit .*nearest: 8"
    ):
        checked({}, num_inference_steps=7)


def test_a_step_cache_needs_a_mask():
    with pytest.raises(ParameterError, match=f"plugins.{STEPS}.mask=None: .*a step cache needs a mask"):
        Extensions.load({STEPS: {"mask": None}})


def test_two_caches_cannot_be_on_together():
    with pytest.raises(PluginError, match="'cachedit' .* and 'cachedit-steps' .* cannot be on together"):
        Extensions.load({BLOCKS: {}, STEPS: {}})
    with pytest.raises(PluginError, match="both run the blocks"):
        extensions_of(blocks_plugin.SPEC, REUSE)


def test_nothing_of_the_library_is_imported_before_it_is_on():
    code = (
        "import sys, fastvideo_cachedit.blocks_plugin, fastvideo_cachedit.steps_plugin, fastvideo_cachedit.options;"
        "print([name for name in ('torch', 'cache_dit', 'diffusers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_library_says_nothing_when_it_is_imported():
    code = "import fastvideo_cachedit.blocks, fastvideo_cachedit.steps"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
