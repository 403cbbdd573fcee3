"""What profilers and watched programs write, as tables.

docs/structure.md says which of its folders answers what, from the commands down.

From Python 3.15 on the standard library has a package of this name, and its ``cProfile`` imports from
it. Extending the path keeps ``profiling.tracing`` and ``profiling.sampling`` importable there.
"""

from pkgutil import extend_path

from profiling.errors import one_line_if_interrupted_while_loading

__path__ = extend_path(__path__, __name__)

one_line_if_interrupted_while_loading(__name__)
