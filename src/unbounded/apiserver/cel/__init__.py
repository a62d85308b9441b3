"""The Common Expression Language as Kubernetes offers it in validation rules: our own evaluator.

Source text is parsed (`lexer`, `parser`, `macros`) to a tree (`ast`), checked against declared variables (`check`,
`types`; `declare` makes declarations from schemas), bounded in cost (`cost`), and compiled to closures (`compile`,
`folds`) over the libraries in `functions/`. Which variables there are is the caller's to say:

    checked = check_expression("self.replicas <= 5", {"self": declare(schema)})
    checked.program().evaluate({"replicas": 3})
"""

from unbounded.apiserver.cel.declare import declare
from unbounded.apiserver.cel.errors import CelError, CompileError, CostExceeded, EvalError, ProgramError
from unbounded.apiserver.cel.meter import Meter
from unbounded.apiserver.cel.program import Checked, Program, check_expression

__all__ = [
    "CelError",
    "Checked",
    "CompileError",
    "CostExceeded",
    "EvalError",
    "Meter",
    "Program",
    "ProgramError",
    "check_expression",
    "declare",
]
