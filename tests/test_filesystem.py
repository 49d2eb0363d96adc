"""Which file systems a ledger must not live on."""

from __future__ import annotations

import pytest

from ranonce.filesystem import file_system_of

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
25 22 0:23 / /run rw,nosuid - tmpfs tmpfs rw,size=10%
26 22 0:30 / /mnt/share rw - nfs4 server:/export rw
27 22 0:31 / /mnt/with\\040space rw - cifs //server/share rw
28 22 0:32 / /home/me/remote rw - fuse.sshfs me@there:/ rw
29 25 254:1 / /run/disk rw - xfs /dev/vdb rw
30 22 0:33 / /later rw - ext4 /dev/vdc rw
31 30 0:34 / /later rw - overlay overlay rw
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return str(path)


@pytest.mark.parametrize(
    ("path", "kind", "bad"),
    [
        ("/var/lib/ranonce", "ext4", False),
        ("/run/ranonce", "tmpfs", True),
        ("/runner/ranonce", "ext4", False),
        ("/run/disk/ranonce", "xfs", False),
        ("/mnt/share/ledger", "nfs4", True),
        ("/mnt/with space/ledger", "cifs", True),
        ("/home/me/remote/ledger", "fuse.sshfs", True),
        ("/later/ledger", "overlay", True),
    ],
)
def test_the_file_system_under_a_path_is_named(mounts, path, kind, bad):
    found = file_system_of(path, mounts=mounts)
    assert (found.kind, found.problem is not None) == (kind, bad)


def test_a_system_that_does_not_tell_has_no_problem(tmp_path):
    assert file_system_of("/x", mounts=str(tmp_path / "none")).problem is None
