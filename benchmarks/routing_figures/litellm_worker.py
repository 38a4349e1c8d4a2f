"""Scores prompts with the complexity router of LiteLLM, inside a virtual environment that has nothing but LiteLLM.

It reads a prompt per line, as JSON, and writes a list of two scores per line: that of each version in `litellm.VERSIONS`. Run with
``python -I``: otherwise the module `litellm` next to this file would hide the package.
"""

import json
import sys
from importlib import import_module


def main() -> None:
    """Score every line."""
    router = import_module("litellm.router_strategy.complexity_router.complexity_router").ComplexityRouter
    # A router that only classifies asks nothing of the deployments around it.
    weighted = router("benchmark", None, {"classifier_type": "heuristic"})
    predicting = router("benchmark", None, {"classifier_type": "heuristic_v2"})
    for line in sys.stdin:
        prompt = json.loads(line)
        _, score, _ = weighted.classify(prompt)
        # The public way takes a whole request and wants deployments to send it to.
        forecast = predicting._classify_locally(prompt, None).heuristic_v2_forecast
        print(json.dumps([score, 1 - forecast["probabilities"]["SIMPLE"]]))


if __name__ == "__main__":
    main()
