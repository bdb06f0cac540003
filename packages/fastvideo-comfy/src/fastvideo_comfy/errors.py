"""Errors of this package, in core's tree.

FastVideoError
└── InputError
    ├── WorkflowError           a file that is no workflow at all
    └── UnsupportedWorkflowError  a workflow that cannot be compiled; carries every reason, by node
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastvideo_core.errors import InputError

if TYPE_CHECKING:
    from fastvideo_comfy.report import CoverageReport

__all__ = ["UnsupportedWorkflowError", "WorkflowError"]


class WorkflowError(InputError):
    """A file is no workflow: no JSON, too large, or of another shape."""


class UnsupportedWorkflowError(InputError):
    """A workflow cannot be compiled.

    Attributes:
        report: Every node and what became of it, with all reasons.
    """

    def __init__(self, report: CoverageReport) -> None:
        self.report = report
        problems = report.problems
        first = problems[0]
        more = f"; and {len(problems) - 1} more reasons" if len(problems) > 1 else ""
        super().__init__(f"the workflow does not compile: {first.line()}{more}")
