"""Starts the rank agent in this interpreter, then runs the `sitecustomize` that would have run without us.

`ddx run` puts this directory first on PYTHONPATH. Python imports only one `sitecustomize`, so the next one on the path
(the user's, the distribution's) is executed from here as the real one: it becomes `sys.modules["sitecustomize"]`, and
an error in it reaches `site` as usual. `usercustomize` is not affected.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_AGENT = "_ddx_rank_agent"


def _start_agent() -> None:
    if sys.version_info < (3, 8) or _AGENT in sys.modules or not os.environ.get("DDX_RUN_DIR"):
        return
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(_AGENT, os.path.join(os.path.dirname(_HERE), "rank_agent.py"))
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[_AGENT] = module
        spec.loader.exec_module(module)
        module.install()
        if os.environ.get("DDX_CONSISTENCY"):
            from importlib import import_module

            import_module("ddx_consistency").attach()
    except Exception:
        # The job has priority: without an agent it runs as usual.
        pass


def _run_next_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.realpath(_HERE)]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_start_agent()
_run_next_sitecustomize()
