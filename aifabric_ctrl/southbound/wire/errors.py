"""Names of OpenFlow errors, so that an operator reads "BAD_ACTION/BAD_OUT_PORT" and not "2/4".

Source: OpenFlow 1.3.5, 7.4.4; ONF extension 230 (bundles); names without their OFPxxC prefix.
"""

from __future__ import annotations

from aifabric_ctrl.southbound.wire.constants import ET_EXPERIMENTER, NX_EXPERIMENTER, ONF_EXPERIMENTER

_TYPES: dict[int, tuple[str, str]] = {
    0: ("HELLO_FAILED", "INCOMPATIBLE EPERM"),
    1: (
        "BAD_REQUEST",
        "BAD_VERSION BAD_TYPE BAD_MULTIPART BAD_EXPERIMENTER BAD_EXP_TYPE EPERM BAD_LEN BUFFER_EMPTY BUFFER_UNKNOWN "
        "BAD_TABLE_ID IS_SLAVE BAD_PORT BAD_PACKET MULTIPART_BUFFER_OVERFLOW",
    ),
    2: (
        "BAD_ACTION",
        "BAD_TYPE BAD_LEN BAD_EXPERIMENTER BAD_EXP_TYPE BAD_OUT_PORT BAD_ARGUMENT EPERM TOO_MANY BAD_QUEUE "
        "BAD_OUT_GROUP MATCH_INCONSISTENT UNSUPPORTED_ORDER BAD_TAG BAD_SET_TYPE BAD_SET_LEN BAD_SET_ARGUMENT",
    ),
    3: (
        "BAD_INSTRUCTION",
        "UNKNOWN_INST UNSUP_INST BAD_TABLE_ID UNSUP_METADATA UNSUP_METADATA_MASK BAD_EXPERIMENTER BAD_EXP_TYPE BAD_LEN EPERM",
    ),
    4: (
        "BAD_MATCH",
        "BAD_TYPE BAD_LEN BAD_TAG BAD_DL_ADDR_MASK BAD_NW_ADDR_MASK BAD_WILDCARDS BAD_FIELD BAD_VALUE BAD_MASK "
        "BAD_PREREQ DUP_FIELD EPERM",
    ),
    5: ("FLOW_MOD_FAILED", "UNKNOWN TABLE_FULL BAD_TABLE_ID OVERLAP EPERM BAD_TIMEOUT BAD_COMMAND BAD_FLAGS"),
    6: (
        "GROUP_MOD_FAILED",
        "GROUP_EXISTS INVALID_GROUP WEIGHT_UNSUPPORTED OUT_OF_GROUPS OUT_OF_BUCKETS CHAINING_UNSUPPORTED "
        "WATCH_UNSUPPORTED LOOP UNKNOWN_GROUP CHAINED_GROUP BAD_TYPE BAD_COMMAND BAD_BUCKET BAD_WATCH EPERM",
    ),
    7: ("PORT_MOD_FAILED", "BAD_PORT BAD_HW_ADDR BAD_CONFIG BAD_ADVERTISE EPERM"),
    8: ("TABLE_MOD_FAILED", "BAD_TABLE BAD_CONFIG EPERM"),
    9: ("QUEUE_OP_FAILED", "BAD_PORT BAD_QUEUE EPERM"),
    10: ("SWITCH_CONFIG_FAILED", "BAD_FLAGS BAD_LEN EPERM"),
    11: ("ROLE_REQUEST_FAILED", "STALE UNSUP BAD_ROLE"),
    12: (
        "METER_MOD_FAILED",
        "UNKNOWN METER_EXISTS INVALID_METER UNKNOWN_METER BAD_COMMAND BAD_FLAGS BAD_RATE BAD_BURST BAD_BAND "
        "BAD_BAND_VALUE OUT_OF_METERS OUT_OF_BANDS",
    ),
    13: ("TABLE_FEATURES_FAILED", "BAD_TABLE BAD_METADATA BAD_TYPE BAD_LEN BAD_ARGUMENT EPERM"),
}

_ONF = {
    2300: "BUNDLE/UNKNOWN",
    2301: "BUNDLE/EPERM",
    2302: "BUNDLE/BAD_ID",
    2303: "BUNDLE/BUNDLE_EXIST",
    2304: "BUNDLE/BUNDLE_CLOSED",
    2305: "BUNDLE/OUT_OF_BUNDLES",
    2306: "BUNDLE/BAD_TYPE",
    2307: "BUNDLE/BAD_FLAGS",
    2308: "BUNDLE/MSG_BAD_LEN",
    2309: "BUNDLE/MSG_BAD_XID",
    2310: "BUNDLE/MSG_UNSUP",
    2311: "BUNDLE/MSG_CONFLICT",
    2312: "BUNDLE/MSG_TOO_MANY",
    2313: "BUNDLE/MSG_FAILED",
    2314: "BUNDLE/TIMEOUT",
    2315: "BUNDLE/BUNDLE_IN_PROGRESS",
    2600: "BAD_INSTRUCTION/DUP_INST",
}


def error_name(error_type: int, code: int, experimenter: int = 0) -> str:
    """``TYPE/CODE``; numbers stand where a name is unknown.  For experimenter errors ``code`` is the exp_type."""
    if error_type == ET_EXPERIMENTER:
        if experimenter == ONF_EXPERIMENTER:
            return _ONF.get(code, f"ONF/{code}")
        return f"NICIRA/{code}" if experimenter == NX_EXPERIMENTER else f"EXPERIMENTER_{experimenter:#x}/{code}"
    known = _TYPES.get(error_type)
    if known is None:
        return f"{error_type}/{code}"
    name, text = known
    codes = text.split()
    return f"{name}/{codes[code]}" if code < len(codes) else f"{name}/{code}"


def error_code(name: str) -> tuple[int, int, int]:
    """The reverse, for fake switches: (type, code, experimenter or 0) of a name ``error_name`` gives.

    Raises:
        KeyError: no error has that name.
    """
    return _CODES[name]


_CODES: dict[str, tuple[int, int, int]] = {
    f"{name}/{code}": (number, position, 0)
    for number, (name, text) in _TYPES.items()
    for position, code in enumerate(text.split())
}
_CODES.update({name: (ET_EXPERIMENTER, number, ONF_EXPERIMENTER) for number, name in _ONF.items()})
