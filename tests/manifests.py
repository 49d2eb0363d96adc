"""Read YAML as Kubernetes and GitHub do: by YAML 1.1 and by YAML 1.2, which must agree."""

from __future__ import annotations

from ruamel.yaml import YAML

#: What YAML 1.1 takes for true; GitHub and everybody who reads its workflows know.
ON = {True: "on"}


def read(text):
    """Return the documents of a text, the same by both versions of YAML."""
    by_version = [documents(text, version) for version in ((1, 1), (1, 2))]
    assert by_version[0] == by_version[1], text
    return by_version[1]


def documents(text, version):
    yaml = YAML(typ="safe", pure=True)
    yaml.version = version
    found = list(yaml.load_all(text))
    return [{ON.get(key, key): value for key, value in each.items()} for each in found]
