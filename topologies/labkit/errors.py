"""Why a lab run or one of its rows could not be done. Nothing else."""


class LabError(Exception):
    """The lab cannot run at all; the text says what is missing and what to do."""


class PhaseError(Exception):
    """One row could not be measured (the fabric did not settle, the controller did not answer); the others go on."""
