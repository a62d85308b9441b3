"""Go's text/template, for the `.tmpl` files of netboot images.

A `Template` is compiled once and renders any number of times; `template_data` is what it is given. It holds to Go's
documentation and to the words of Go's errors. A rendering is bounded (`Limits`): whoever writes an image can make his
own files wrong, and not keep metalman busy. Which files are rendered, and when, is not decided here.
"""

from unbounded.metalman.templates.errors import ParseError, RenderError, TemplateError
from unbounded.metalman.templates.machine import Surroundings, template_data
from unbounded.metalman.templates.run import Limits
from unbounded.metalman.templates.template import Template

__all__ = ["Limits", "ParseError", "RenderError", "Surroundings", "Template", "TemplateError", "template_data"]
