"""Every error a user can meet, in one tree.

    UnderstudyError                 exit code 1
    ├── OwnFault                    exit code 1: Understudy itself failed; the job stopped there and can be resumed
    ├── JobError                    exit code 2: the job as written cannot run (cycle, duplicate name, schema, ...)
    ├── SetupError                  exit code 3: the machine is not ready (Java, port, folder, disk)
    ├── Refused                     exit code 4: wrong token, or an address that must not be used
    ├── StageFailed                 exit code 5: the user's code threw; the job stopped there and can be resumed
    ├── HostsUnavailable            exit code 6: not enough living hosts to go on
    └── DrillFailed                 exit code 7: the verdict was not what was expected

A message names the cause and the remedy. Expected outcomes of the protocol (a stale generation, a lost race)
are values, not exceptions.
"""


class UnderstudyError(Exception):
    exit_code = 1


class OwnFault(UnderstudyError):
    pass


class JobError(UnderstudyError):
    exit_code = 2


class SetupError(UnderstudyError):
    exit_code = 3


class Refused(UnderstudyError):
    exit_code = 4


class StageFailed(UnderstudyError):
    exit_code = 5


class HostsUnavailable(UnderstudyError):
    exit_code = 6


class DrillFailed(UnderstudyError):
    exit_code = 7
