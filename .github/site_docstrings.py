"""What the site shows of the package: names from the stub, and examples as code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # until an empty line


class Examples(griffe.Extension):
    """Show examples in docstrings as code; take names from the stub, even where a folder has the same name."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Put in what the stub has."""
        if pkg.path != "bertkit":
            return
        path = pkg.filepath.with_suffix(".pyi")
        stub = griffe.visit("bertkit", filepath=path, code=path.read_text(encoding="utf-8"), docstring_parser="google")
        found = {name: some[0] for name, some in stub.overloads.items() if some} | dict(stub.functions)
        for name, member in stub.members.items():
            if member.is_alias and member.target_path.startswith("bertkit."):
                found[name] = pkg[member.target_path.removeprefix("bertkit.")]
        for name, member in found.items():
            pkg.set_member(name, member)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence them."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
