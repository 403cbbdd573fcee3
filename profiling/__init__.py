"""What did the tools write, as tables?

How a file becomes tables, and where to look::

    tools/           one file a profiler: is this file its own, and how is it read?
    chunks, kineto   PyTorch's JSON, a piece at a time        -> events
    events           what happened, in columns, whoever wrote it
    nesting          which event lies in which?
    context          whose operator, layer and sequence number?  steps: which batch?  passes: which pass?
    credit           what does each operator cost?  shapes: its inputs  cost, formulas: its FLOPs and bytes
    classify         what kind of work is a kernel, by its name?
    attribute        events, context and credit put together  -> tables

From Python 3.15 on the standard library has a package of this name, and its ``cProfile`` imports from
it. Extending the path keeps ``profiling.tracing`` and ``profiling.sampling`` importable there.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
