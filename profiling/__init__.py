"""What profilers and watched programs write, as tables.

docs/structure.md says which of its folders answers what, from the commands down.

From Python 3.15 on the standard library has a package of this name, and its ``cProfile`` imports from
it. Extending the path keeps ``profiling.tracing`` and ``profiling.sampling`` importable there.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
