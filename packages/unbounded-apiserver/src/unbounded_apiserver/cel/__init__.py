"""The Common Expression Language as Kubernetes offers it in validation rules: our own evaluator.

- `lexer`, `parser` and `macros` parse source text to a tree (`ast`).
- `check` and `types` check the tree with declared variables; `declare` makes declarations from schemas.
- `cost` bounds the cost.
- `program` compiles to closures over the libraries in `functions/`, with `code` and `macros`.

The caller declares the variables:

    checked = check_expression("self.replicas <= 5", {"self": declare(schema)})
    checked.program().evaluate({"replicas": 3})
"""

from unbounded_apiserver.cel.declare import declare
from unbounded_apiserver.cel.meter import Meter
from unbounded_apiserver.cel.program import CelProgram, Checked, check_expression
from unbounded_apiserver.cel.values import CelError, CompileError, CostExceeded, EvalError, ProgramError

__all__ = [
    "CelError",
    "CelProgram",
    "Checked",
    "CompileError",
    "CostExceeded",
    "EvalError",
    "Meter",
    "ProgramError",
    "check_expression",
    "declare",
]
