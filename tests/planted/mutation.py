"""Changes of one expression or statement of an object, found in its syntax tree.

Formatting, comments and the place of an object in its file play no part. A change is a mapping with one of

* ``replace`` and ``by``: an expression and another one, or statements that follow each other and others;
* ``delete``: statements, which become ``pass``;
* ``negate``: a condition, which becomes its opposite;
* ``swap``: an operation or a tuple of two, whose parts change places;
* ``argument``: ``NAME=VALUE``, which the keyword argument of that name becomes, in whatever call has it;
* ``drop_argument``: the name of a keyword argument, which is left out.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CHANGES = (("replace", "by"), ("delete",), ("negate",), ("swap",), ("argument",), ("drop_argument",))
"""The keys of each kind of change."""

_FOLDERS = {"lovec.cli": "cli", "lovec.configs": "configs"}
"""Packages that lie elsewhere in the repository than their names say."""

_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.In: ast.NotIn,
    ast.Is: ast.IsNot,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
}
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}


class MutationError(ValueError):
    """A change that does not fit the code."""


def file_of(where: str, root: Path) -> Path:
    """Return the file that defines an object.

    Args:
        where: a module, or an object in it, as ``lovec.policy.policy:Policy.reference``.
        root: the folder of the repository.
    """
    module = where.partition(":")[0]
    for package, folder in _FOLDERS.items():
        if f"{module}.".startswith(f"{package}."):
            module = folder + module.removeprefix(package)
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    raise MutationError(f"there is no module {where.partition(':')[0]}")


def mutated(source: str, where: str, change: Mapping[str, str]) -> ast.Module:
    """Return the syntax tree of a module with a change.

    Args:
        source: source code of the module.
        where: the module, or the object in it that the change is in: a function, a class, or a name that is assigned.
        change: see the module's docstring.

    Raises:
        MutationError: there is no such object, what is to be changed is not in it exactly once, or nothing is changed.
    """
    tree = ast.parse(source)
    old, new = _before_and_after(change)
    inside = {id(node) for found in _objects(tree, where) for node in ast.walk(found)}
    places = list(_places(tree, inside, old))
    if len(places) != 1:
        advice = "give more of what stands around it" if places else _nearest(tree, inside, old)
        raise MutationError(f"{where} has {_shown(old)} {len(places)} times, expected once; {advice}")
    [(parent, field, at)] = places
    value = getattr(parent, field)
    found = value[at : at + len(old)] if isinstance(value, list) else [value]
    if list(map(ast.dump, found)) == list(map(ast.dump, new)):
        raise MutationError(f"{where} has {_shown(old)} already; a change has to make a difference")
    if isinstance(value, list):
        value[at : at + len(old)] = new
    else:
        setattr(parent, field, new[0])
    return ast.fix_missing_locations(tree)


def _objects(tree: ast.Module, where: str) -> list[ast.AST]:
    """Return the definitions of an object: several of a property with a setter, and of a function with overloads."""
    found: list[ast.AST] = [tree]
    for name in filter(None, where.partition(":")[2].split(".")):
        found = [node for scope in found for node in _members(scope) if name in _names(node)]
    if not found:
        raise MutationError(f"{where}: there is no such object in the module")
    return found


def _members(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of the scopes inside it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _members(node)


def _names(node: ast.AST) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _places(tree: ast.Module, inside: set[int], wanted: Sequence[ast.AST]) -> Iterator[tuple[ast.AST, str, int]]:
    """Yield where nodes follow each other: their parent, its field, and the place in that field if it is a list."""
    keys = [_key(node) for node in wanted]
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for at in range(len(nodes) - len(wanted) + 1):
                part = nodes[at : at + len(wanted)]
                if all(id(node) in inside for node in part) and [_key(node) for node in part] == keys:
                    yield parent, field, at


def _key(node: ast.AST) -> str:
    """Return what equal nodes have in common: all but their places, and of a keyword argument its name alone."""
    return f"{node.arg}=" if isinstance(node, ast.keyword) else ast.dump(node)


def _before_and_after(change: Mapping[str, str]) -> tuple[Sequence[ast.AST], Sequence[ast.AST]]:
    """Return the nodes that a change is about, and those that take their place."""
    if tuple(change) not in CHANGES:
        kinds = ", ".join(map(" and ".join, CHANGES))
        raise MutationError(f"a change has {', '.join(change) or 'no keys'}, expected one of {kinds}")
    if "delete" in change:
        return _statements(change["delete"]), [ast.Pass()]
    if "negate" in change:
        return [_expression(change["negate"])], [_negated(_expression(change["negate"]))]
    if "swap" in change:
        return [_expression(change["swap"])], [_swapped(_expression(change["swap"]))]
    if "argument" in change:
        return [_keyword(change["argument"])], [_keyword(change["argument"])]
    if "drop_argument" in change:
        return [_keyword(f"{change['drop_argument']}=None")], []
    old, new = _statements(change["replace"]), _statements(change["by"])
    if all(len(part) == 1 and isinstance(part[0], ast.Expr) for part in (old, new)):
        return [_expression(change["replace"])], [_expression(change["by"])]
    return old, new


def _statements(snippet: str) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(snippet)).body
    except SyntaxError as error:
        raise MutationError(f"{snippet!r} is no Python: {error}") from None


def _expression(snippet: str) -> ast.expr:
    match _statements(snippet):
        case [ast.Expr(value)]:
            return value
    raise MutationError(f"{snippet!r} is a statement, expected an expression")


def _keyword(snippet: str) -> ast.keyword:
    match _statements(f"call({snippet})"):
        case [ast.Expr(ast.Call(args=[], keywords=[keyword]))]:
            return keyword
    raise MutationError(f"{snippet!r} is no keyword argument, expected NAME=VALUE")


def _negated(condition: ast.expr) -> ast.expr:
    match condition:
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Compare(left, [operator], others):
            return ast.Compare(left, [_OPPOSITES[type(operator)]()], others)
    return ast.UnaryOp(ast.Not(), condition)


def _swapped(whole: ast.expr) -> ast.expr:
    match whole:
        case ast.BinOp(left, operator, right):
            return ast.BinOp(right, operator, left)
        case ast.Tuple([first, second], context):
            return ast.Tuple([second, first], context)
    raise MutationError(f"{_shown([whole])} is no operation and no tuple of two")


def _nearest(tree: ast.Module, inside: set[int], wanted: Sequence[ast.AST]) -> str:
    """Say which code of an object is most like some nodes."""
    kind = next(kind for kind in (ast.stmt, ast.expr, ast.keyword) if isinstance(wanted[0], kind))
    texts = [ast.unparse(node) for node in ast.walk(tree) if id(node) in inside and isinstance(node, kind)]
    [nearest] = difflib.get_close_matches(ast.unparse(wanted[0]), texts, n=1, cutoff=0.0) or ["nothing"]
    return f"the nearest is `{nearest}`"


def _shown(nodes: Sequence[ast.AST]) -> str:
    return f"`{'; '.join(map(ast.unparse, nodes))}`"
