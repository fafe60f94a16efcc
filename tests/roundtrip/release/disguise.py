"""A copy as somebody makes it who does not want it seen: new names, order, words and layout."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection


def disguised(text: str, kept: Collection[str]) -> str:
    """`text` with every name changed but those in `kept`, which its caller needs."""
    tree = ast.parse(text)
    made = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    made |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    made |= {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    names = sorted(made - set(kept) - set(dir(builtins)))
    tree = _Renamed({name: f"thing_{number}" for number, name in enumerate(names)}).visit(tree)
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    others = [node for node in tree.body if node not in functions]
    tree.body = others + functions[::-1]
    return "# My own work.\n" + ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self._names.get(node.arg, node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self._reworded(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self._reworded(node)

    def _reworded(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node):
            node.body[0] = ast.Expr(ast.Constant("Said in other words altogether."))
        return self.generic_visit(node)
