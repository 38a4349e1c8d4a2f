"""Routes recorded tasks with ParetoBandit, inside a virtual environment that has it.

It reads one line of JSON: vectors and rewards of the tasks that it may learn from and of those that it is asked about, and shares of far
calls. It writes one line: for each task asked about, what far is expected to gain, and by share which of them it sent far. Run with
``python -I``: otherwise modules next to this file would hide packages.
"""

import json
import sys
from importlib import import_module
from typing import Any

TOKENS = 100
DOLLARS = {"near": 0.1, "far": 10.0}


def main() -> None:
    """Answer the line."""
    asked = json.loads(sys.stdin.readline())
    router = _taught(asked)
    vectors = [_vector(row) for row in asked["vectors"]]
    gains = [router.bandit.get_expected_reward("far", each) - router.bandit.get_expected_reward("near", each) for each in vectors]
    print(json.dumps({"gains": gains, "far": {str(share): _paced(asked, vectors, share) for share in asked["shares"]}}))


def _taught(asked: dict[str, Any]) -> Any:  # noqa: ANN401 - a class of the package's
    """A router that has seen the rewards of both sides on every task that it may learn from."""
    package = import_module("pareto_bandit")
    dimension = len(asked["vectors"][0])
    features = import_module("pareto_bandit.feature_service").FeatureService.for_precomputed(dimension)
    prices = {name: {"input_cost_per_m": dollars, "output_cost_per_m": dollars} for name, dollars in DOLLARS.items()}
    # Nothing drifts in recorded outcomes, so that nothing is to be forgotten; costs are left to the pacer.
    router = package.BanditRouter.create(
        model_registry=prices, priors="none", feature_service=features, forgetting_factor=1.0, cost_penalty=0.0, bandit_seed=0
    )
    for row, rewards in zip(asked["known_vectors"], asked["known_rewards"], strict=True):
        for side, reward in zip(("near", "far"), rewards, strict=True):
            router.update(side, _vector(row), reward)
    return router


def _paced(asked: dict[str, Any], vectors: list[Any], share: float) -> list[bool]:
    """Serve the tasks as a stream under its budget pacer, with the reward of the agent that served each."""
    pacing = import_module("pareto_bandit.budget_pacer")
    router = _taught(asked)
    costs = {name: router._estimate_cost(name, TOKENS, TOKENS) for name in DOLLARS}
    target = share * costs["far"] + (1 - share) * costs["near"]
    router.budget_pacer = pacing.BudgetPacer(target, mode=pacing.PacingMode.SOFT)
    chosen = []
    for vector, (near, far) in zip(vectors, asked["rewards"], strict=True):
        model, log = router.route(vector, input_tokens=TOKENS, output_tokens=TOKENS)
        router.process_feedback(log.request_id, far if model == "far" else near)
        chosen.append(model == "far")
    return chosen


def _vector(row: list[float]) -> Any:  # noqa: ANN401 - an array of numpy's, which this environment has and the checker does not
    return import_module("numpy").array(row)


if __name__ == "__main__":
    main()
