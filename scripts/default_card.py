"""Train the card by role that is shipped with the router, from recorded answers of many small models.

    python scripts/default_card.py --data FOLDER [--sets NAME ...] [--out FILE]

FOLDER holds cruxeval.jsonl.gz and math_l5.jsonl.gz, both of ZeroEval (Apache-2.0): answers of six small models and of two far ones. Each
small model that is clearly worse than the far one drafts, and any two others give opinions. Measures that no such set holds (validity,
grounding, confidence) have weights that are set by hand.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.routing_figures.role_cards import LICENCES, role_card, role_examples
from nearfar.orchestrator.routing.drafts import DEFAULT_CARD
from nearfar.orchestrator.routing.escalation import CardOrigin, Escalation


def main() -> None:
    """Write the card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded data")
    parser.add_argument("--out", type=Path, default=DEFAULT_CARD)
    options = parser.parse_args()
    card = role_card([role_examples(options.data, name) for name in LICENCES])
    provenance = CardOrigin(
        sets=tuple(LICENCES),
        licences=tuple(LICENCES.values()),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        command="python scripts/default_card.py --data FOLDER",
        note="weights of validity, grounding and confidence are set by hand",
    )
    Escalation(card.model_copy(update={"provenance": provenance})).save(options.out)
    print(f"{options.out}: {card.traces:,} drafts, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
