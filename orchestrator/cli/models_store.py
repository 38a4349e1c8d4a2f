"""`nearfar models list`: what there is."""

from ..compose import EMBEDDED, model_path
from .console import output, print_json


def list_models(*, as_json: bool) -> None:
    """Print the models by name."""
    sizes = {name: model_path(name).stat().st_size for name in EMBEDDED}
    if as_json:
        print_json({"models": [{"name": name, "bytes": size} for name, size in sizes.items()]})
        return
    for name, size in sizes.items():
        output.print(f"{name:<20} {size / 1e6:8.1f} MB")
