"""Part of nbgrader's generate_assignment: put the stub where the reference stands."""

from __future__ import annotations

from typing import Any

from nbgrader.preprocessors import ClearSolutions


class ClearToStub(ClearSolutions):
    """nbgrader has one stub for the whole course; here each cell brings its own."""

    def preprocess_cell(self, cell: Any, resources: Any, cell_index: int) -> tuple[Any, Any]:
        stub = cell.metadata.pop("distlab", {}).get("stub")
        kept: tuple[Any, Any] = (self.code_stub, self.text_stub)  # type: ignore[has-type]
        if stub is not None:
            self.code_stub, self.text_stub = {resources["language"]: stub}, stub
        try:
            cell, resources = super().preprocess_cell(cell, resources, cell_index)
        finally:
            self.code_stub, self.text_stub = kept
        return cell, resources
