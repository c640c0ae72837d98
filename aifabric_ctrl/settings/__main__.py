"""``python -m aifabric_ctrl.settings > docs/settings.md``: the settings table as a page, checked by a test."""

from __future__ import annotations

from aifabric_ctrl.settings import TABLE, Setting, display_text

HEAD = """# Settings

No settings are needed: without any, everything is discovered. To change some, write a YAML file, name it with
`AIFABRIC_CONFIG`, or set the environment variable `AIFABRIC_<NAME>` (`AIFABRIC_BFD=off`); a variable wins over the file,
an empty one counts as not set. `aifabric settings` shows every value and where it came from.

```yaml
# fabric.yaml
gateways: [10.0.1.254, 10.0.2.254]
prefixes: [10.0.0.0/8]
host_age_s: 600
```

Files are YAML 1.2 and read strictly: `true` and `false` are the only words for yes and no, a key may stand once, there are
no aliases or tags, and a file holds at most 1 MiB. File names are relative to the file they stand in. In the environment,
lists are separated by commas (`none` is the empty list), and `on`, `off`, `yes`, `no` work as well. Names that are not
settings are refused, except `AIFABRIC_LAB_*` and `AIFABRIC_TEST_*`, and what Kubernetes adds for a service of that name
(`AIFABRIC_SERVICE_HOST`, `AIFABRIC_PORT...`). Anything wrong is reported all at once, one line each, and nothing is started.

| name | default | unit | value | why | read by |
|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_row(row) for row in TABLE)


def _row(row: Setting) -> str:
    default = "(see why)" if row.name == "state_dir" else display_text(row.name, row.default)
    cells = (f"`{row.name}`", f"`{default}`", row.unit, row.kind.words, row.reason, row.used)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(page(), end="")
