"""The manifest of a Kubernetes CronJob. Sources: the API reference of batch/v1, and robfig/cron 3.0.1 for the rule.

The container has no configuration: the command line says all, and the ledger comes from a Secret. With the ledger in
a SQLite file the manifest holds a volume for it too, since the container's own disk is gone with it. With one on a
server no volume is needed, and what a host keeps for itself (its journal) ends with each pod.
"""

from __future__ import annotations

import hashlib
import json
import re
from math import ceil
from shlex import quote

from ranonce.schedulers import WRITTEN_BY, Printed, cron_rule, writable
from ranonce.schedulers.cronlines import day_parts, field_text
from ranonce.schedulers.yamltext import scalar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.cron import CronRule
    from ranonce.schedulers import Wanted

#: With `-` and the minutes of the schedule behind it, and five characters more, a pod's name still says them all: it
#: is how a run knows which trigger it is.
LONGEST_NAME = 48
PLACEHOLDER_IMAGE = "registry.invalid/put-your-image-here:tag"
VOLUME = "/var/lib/ranonce"
STORE = f"sqlite:///{VOLUME}/ledger.db"
STATE_HOME = f"{VOLUME}/state"
SECRET = "ranonce"  # noqa: S105 - the name of one
CLAIM = "ranonce-ledger"
#: After TERM and the job's own grace: leftovers are waited for, the verdict is written to a store that may be busy.
AFTER_GRACE_SECONDS = 60


def printed(wanted: Wanted) -> Printed:
    """Return the manifest of a job, and how it is brought into a cluster."""
    job = wanted.spec.name
    name = object_name(job)
    image = wanted.image or PLACEHOLDER_IMAGE
    notes = []
    if name != job:
        notes.append(f"In Kubernetes {job} is called {name}: names there are of a-z 0-9 -, {LONGEST_NAME} at most.")
    if wanted.image is None:
        notes.append(
            f"Say --image IMAGE, with ranonce{wanted.extra} and the command in it: {PLACEHOLDER_IMAGE} is no image."
        )
    rule = cron_rule(wanted.schedule)
    if not rule.either_day and len(rule.weekdays) < 7 and len(rule.days) < 31:
        notes.append(
            f"Kubernetes cannot say that both day fields of {rule.text!r} must match: it fires whenever the"
            " stricter one does, and a trigger too many finds its window done."
        )
    files = ((f"{name}.yaml", manifest(wanted)),)
    if wanted.sqlite is None:
        notes += wanted.unreachable("a pod")
        return Printed(files, "A manifest:", (*_SECRET_OF_A_SERVER, f"kubectl apply -f {name}.yaml"), tuple(notes))
    return Printed(
        (("ranonce-ledger.yaml", claim()), *files),
        "Two manifests, the ledger's disk and the job:",
        (*_make_ledger(image), f"kubectl apply -f {name}.yaml"),
        tuple(notes),
    )


def claim() -> str:
    """Return the PersistentVolumeClaim of a ledger in a SQLite file."""
    return f"{WRITTEN_BY}\n{_CLAIM}"


def manifest(wanted: Wanted) -> str:
    """Return the CronJob of a job."""
    spec = wanted.spec
    writable((*wanted.alone, wanted.cwd or ""), "a manifest")
    window = wanted.schedule.window_at(wanted.now)
    values = {
        "name": scalar(object_name(spec.name)),
        "schedule": scalar(schedule_text(cron_rule(wanted.schedule))),
        "zone": scalar("Etc/UTC" if wanted.schedule.tz == "UTC" else wanted.schedule.tz),
        "concurrency": "Forbid" if spec.overlap == "forbid" else "Allow",
        "deadline": max(60, window.end - window.start if spec.max_late is None else ceil(spec.max_late)),
        "try_later": _TRY_LATER.format(status=spec.busy_exit) if spec.busy_exit else "",
        "grace": ceil(spec.grace_kill) + AFTER_GRACE_SECONDS,
        "grace_kill": f"{spec.grace_kill:g}",
        "image": scalar(wanted.image or PLACEHOLDER_IMAGE),
        "command": "".join(f"                - {scalar(unexpanded(word))}\n" for word in ("ranonce", *wanted.alone)),
        "folder": f"              workingDir: {scalar(wanted.cwd)}\n" if wanted.cwd else "",
    }
    kept = (_STATE, _VOLUMES) if wanted.sqlite is not None else (_NO_VOLUME,)
    return "".join((WRITTEN_BY, "\n", _CRON_JOB.format(**values), *kept))


def object_name(job: str) -> str:
    """Return the name of a job's objects: its own where that is a DNS label of at most 48 characters.

    Any other is made one, with a piece of its digest behind it, so that two jobs never share one.
    """
    if len(job) <= LONGEST_NAME and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", job):
        return job
    digest = hashlib.sha256(job.encode()).hexdigest()[:6]
    return f"{re.sub('[^a-z0-9]+', '-', job.lower())[: LONGEST_NAME - 7].strip('-')}-{digest}"


def schedule_text(rule: CronRule) -> str:
    """Return a rule as robfig/cron reads it: Sunday is 0, and a day field beginning with `*` means every day.

    It knows one rule per CronJob. Where both day fields restrict, it fires when either matches; where only both
    together would do, the stricter one alone is said, which is too often and never too seldom.
    """
    parts = day_parts(rule)
    days, months, weekdays = (parts[0][0], parts[0][1], parts[-1][2])
    minutes = {second % 3600 // 60 for second in rule.minutes}
    hours = {second // 3600 for second in rule.minutes}
    both = len(parts) == 2  # then neither field may look like every day to it
    fields = [field_text(values, at) for at, values in enumerate((minutes, hours))]
    fields += [field_text(days, 2, starred=not both), field_text(months, 3), field_text(weekdays, 4, starred=not both)]
    return " ".join(fields)


def unexpanded(text: str) -> str:
    """Return text that Kubernetes hands on unchanged: `$(NAME)` in a command would be a variable, `$$` a `$`."""
    return text.replace("$", "$$")


def _make_ledger(image: str) -> tuple[str, ...]:
    """Return the commands that make the ledger on its volume and tell the jobs which it is."""
    container = {
        "name": "ranonce-init",
        "image": image,
        "command": ["ranonce", "init", "--store", STORE],
        "env": [{"name": "XDG_STATE_HOME", "value": STATE_HOME}],
        "volumeMounts": [{"name": "ledger", "mountPath": VOLUME}],
    }
    volume = {"name": "ledger", "persistentVolumeClaim": {"claimName": CLAIM}}
    overrides = json.dumps({"apiVersion": "v1", "spec": {"containers": [container], "volumes": [volume]}})
    return (
        "# Once for each ledger: its disk, the ledger on it, and the secret with the ID that init prints.",
        "kubectl apply -f ranonce-ledger.yaml",
        f"kubectl run ranonce-init --rm -i --restart=Never --image={quote(image)} --overrides={quote(overrides)}",
        _secret(STORE),
        "# For each job:",
    )


def _secret(store: str) -> str:
    literals = f"--from-literal=RANONCE_STORE={store} --from-literal=RANONCE_LEDGER=ID"
    return f"kubectl create secret generic {SECRET} {literals}"


#: A password on a command line stays in the shell's history.
_SECRET_OF_A_SERVER = (
    "# Once for each ledger: ranonce.env has RANONCE_STORE=URL, with its password, and RANONCE_LEDGER=ID.",
    f"kubectl create secret generic {SECRET} --from-env-file=ranonce.env",
)
_CLAIM = f"""\
# The ledger's disk: a block device or a local disk. On a network file system (NFS, SMB, CephFS) ranonce refuses a
# ledger, since SQLite's locks do not hold between hosts. ReadWriteOncePod gives it to one pod at a time, so the pods of
# jobs that share it wait for each other; with ReadWriteOnce those of one node work on it together, which SQLite can.
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {CLAIM}
spec:
  accessModes: [ReadWriteOncePod]
  resources:
    requests:
      storage: 1Gi
"""
_CRON_JOB = f"""\
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{name}}
spec:
  schedule: {{schedule}}
  timeZone: {{zone}}
  concurrencyPolicy: {{concurrency}}
  # A late start is better than none as long as the window lasts.
  startingDeadlineSeconds: {{deadline}}
  jobTemplate:
    spec:
      # Kubernetes does not repeat what failed: within a minute all of max_attempts would be used up. The next trigger
      # for the window does, or a person. A pod that the cluster itself took away is made again.
      backoffLimit: 0
      podFailurePolicy:
        rules:
          - action: Ignore
            onPodConditions:
              - type: DisruptionTarget
                status: "True"
{{try_later}}      template:
        spec:
          restartPolicy: Never
          # ranonce passes TERM on, kills the command {{grace_kill}} s later, and records the outcome.
          terminationGracePeriodSeconds: {{grace}}
          containers:
            - name: ranonce
              image: {{image}}
              # Which window it is for, ranonce reads in the pod's name: the minutes of the schedule are in it.
              command:
{{command}}{{folder}}              env:
                - name: RANONCE_STORE
                  valueFrom:
                    secretKeyRef:
                      name: {SECRET}
                      key: RANONCE_STORE
                - name: RANONCE_LEDGER
                  valueFrom:
                    secretKeyRef:
                      name: {SECRET}
                      key: RANONCE_LEDGER
"""
_TRY_LATER = """\
          # Exit {status} is "try later": another pod has the window, or a gate is closed. It must neither fail the Job
          # nor finish it, since both would end the pod that is at work.
          - action: Ignore
            onExitCodes:
              containerName: ranonce
              operator: In
              values: [{status}]
"""
_STATE = f"""\
                - name: XDG_STATE_HOME
                  value: {STATE_HOME}
              volumeMounts:
                - name: ledger
                  mountPath: {VOLUME}
"""
_NO_VOLUME = """\
              # The ledger is on a server and needs no volume. The journal ends with the pod: it would notice a ledger
              # that was put back from an old backup, and keep an outcome while the server is away. To have that, mount
              # a volume and set XDG_STATE_HOME to a folder on it.
"""
_VOLUMES = f"""\
          volumes:
            - name: ledger
              persistentVolumeClaim:
                claimName: {CLAIM}
"""
