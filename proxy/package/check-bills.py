"""Validates bills of materials against the schema of CycloneDX 1.6, strictly: check-bills.py FILE...

Also fails where a dependency names a component that the bill does not have.
"""

import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

# Of an error, which goes on with the schema and the bill.
MAX_TEXT = 500


def main() -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    for path in sys.argv[1:]:
        text = Path(path).read_text(encoding="utf-8")
        if error := validator.validate_str(text):
            sys.exit(f"{path}: {str(error)[:MAX_TEXT]}")
        bill = json.loads(text)
        components = [bill["metadata"]["component"], *bill["components"]]
        known = {it["bom-ref"] for it in components}
        named = {it["ref"] for it in bill["dependencies"]}
        named.update(ref for it in bill["dependencies"] for ref in it.get("dependsOn", []))
        if unknown := named - known:
            sys.exit(f"{path}: no component is {sorted(unknown)}")
        print(f"{path}: valid, {len(components)} components")


main()
