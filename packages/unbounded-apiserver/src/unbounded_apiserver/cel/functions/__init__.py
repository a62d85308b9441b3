"""All functions and operators of the environment: CEL's own, its extensions and Kubernetes' libraries.

Each module is one library with a table of overloads; `FUNCTIONS` has all of them by name.
"""

from typing import Final

from unbounded_apiserver.cel.functions.addresses import ADDRESSES
from unbounded_apiserver.cel.functions.authorization import AUTHORIZATION
from unbounded_apiserver.cel.functions.core import CORE, OPTIONALS
from unbounded_apiserver.cel.functions.formats import NAMED_FORMATS
from unbounded_apiserver.cel.functions.lists import LISTS
from unbounded_apiserver.cel.functions.operators import OPERATORS
from unbounded_apiserver.cel.functions.quantities import QUANTITIES
from unbounded_apiserver.cel.functions.strings import STRINGS
from unbounded_apiserver.cel.functions.times import TIMES
from unbounded_apiserver.cel.functions.urls import URLS
from unbounded_apiserver.cel.types import Overload, Table, table

FUNCTIONS: Final[Table] = table(
    OPERATORS, CORE, STRINGS, LISTS, OPTIONALS, TIMES, URLS, ADDRESSES, QUANTITIES, NAMED_FORMATS, AUTHORIZATION
)

__all__ = ["FUNCTIONS", "Overload", "Table"]
