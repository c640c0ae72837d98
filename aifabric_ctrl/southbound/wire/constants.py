"""The numbers of OpenFlow 1.3.5 and of the extensions we speak, under the specification's own names.

Holds no behaviour and imports nothing of the project.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 0x04
HEADER_SIZE: Final = 8
MAX_MESSAGE: Final = 0xFFFF  # the length field has 16 bits
NO_BUFFER: Final = 0xFFFFFFFF
OFPTT_ALL: Final = 0xFF
OFPCML_NO_BUFFER: Final = 0xFFFF

# ofp_type
HELLO: Final = 0
ERROR: Final = 1
ECHO_REQUEST: Final = 2
ECHO_REPLY: Final = 3
EXPERIMENTER: Final = 4
FEATURES_REQUEST: Final = 5
FEATURES_REPLY: Final = 6
GET_CONFIG_REQUEST: Final = 7
GET_CONFIG_REPLY: Final = 8
SET_CONFIG: Final = 9
PACKET_IN: Final = 10
FLOW_REMOVED: Final = 11
PORT_STATUS: Final = 12
PACKET_OUT: Final = 13
FLOW_MOD: Final = 14
GROUP_MOD: Final = 15
PORT_MOD: Final = 16
TABLE_MOD: Final = 17
MULTIPART_REQUEST: Final = 18
MULTIPART_REPLY: Final = 19
BARRIER_REQUEST: Final = 20
BARRIER_REPLY: Final = 21
QUEUE_GET_CONFIG_REQUEST: Final = 22
QUEUE_GET_CONFIG_REPLY: Final = 23
ROLE_REQUEST: Final = 24
ROLE_REPLY: Final = 25
GET_ASYNC_REQUEST: Final = 26
GET_ASYNC_REPLY: Final = 27
SET_ASYNC: Final = 28
METER_MOD: Final = 29

HELLO_VERSION_BITMAP: Final = 1

# ofp_multipart_type
MP_DESC: Final = 0
MP_FLOW: Final = 1
MP_AGGREGATE: Final = 2
MP_TABLE: Final = 3
MP_PORT_STATS: Final = 4
MP_QUEUE: Final = 5
MP_GROUP: Final = 6
MP_GROUP_DESC: Final = 7
MP_GROUP_FEATURES: Final = 8
MP_METER: Final = 9
MP_METER_CONFIG: Final = 10
MP_METER_FEATURES: Final = 11
MP_TABLE_FEATURES: Final = 12
MP_PORT_DESC: Final = 13
MP_EXPERIMENTER: Final = 0xFFFF
MPF_MORE: Final = 1

# ofp_flow_mod_command, ofp_group_mod_command, ofp_meter_mod_command
FC_ADD: Final = 0
FC_MODIFY: Final = 1
FC_MODIFY_STRICT: Final = 2
FC_DELETE: Final = 3
FC_DELETE_STRICT: Final = 4
GC_ADD: Final = 0
GC_MODIFY: Final = 1
GC_DELETE: Final = 2
MC_ADD: Final = 0
MC_MODIFY: Final = 1
MC_DELETE: Final = 2

GT_ALL: Final = 0
GT_SELECT: Final = 1
GT_INDIRECT: Final = 2
GT_FF: Final = 3
GROUP_ALL: Final = 0xFFFFFFFC

MF_KBPS: Final = 1
MF_PKTPS: Final = 2
MF_BURST: Final = 4
MF_STATS: Final = 8
MBT_DROP: Final = 1
METER_ALL: Final = 0xFFFFFFFF
QUEUE_ALL: Final = 0xFFFFFFFF

MATCH_OXM: Final = 1

# ofp_instruction_type
IT_GOTO_TABLE: Final = 1
IT_WRITE_METADATA: Final = 2
IT_WRITE_ACTIONS: Final = 3
IT_APPLY_ACTIONS: Final = 4
IT_CLEAR_ACTIONS: Final = 5
IT_METER: Final = 6
IT_EXPERIMENTER: Final = 0xFFFF

# ofp_action_type
AT_OUTPUT: Final = 0
AT_PUSH_VLAN: Final = 17
AT_POP_VLAN: Final = 18
AT_SET_QUEUE: Final = 21
AT_GROUP: Final = 22
AT_DEC_NW_TTL: Final = 24
AT_SET_FIELD: Final = 25
AT_EXPERIMENTER: Final = 0xFFFF

NX_EXPERIMENTER: Final = 0x00002320
NXAST_REG_MOVE: Final = 6

ONF_EXPERIMENTER: Final = 0x4F4E4600
ONF_BUNDLE_CONTROL: Final = 2300
ONF_BUNDLE_ADD: Final = 2301
BCT_OPEN_REQUEST: Final = 0
BCT_OPEN_REPLY: Final = 1
BCT_CLOSE_REQUEST: Final = 2
BCT_CLOSE_REPLY: Final = 3
BCT_COMMIT_REQUEST: Final = 4
BCT_COMMIT_REPLY: Final = 5
BCT_DISCARD_REQUEST: Final = 6
BCT_DISCARD_REPLY: Final = 7
BF_ATOMIC: Final = 1
BF_ORDERED: Final = 2

# OXM classes (16 bits)
OXM_NXM_0: Final = 0x0000
OXM_NXM_1: Final = 0x0001
OXM_ERICSSON: Final = 0x1000  # nd_reserved and nd_options_type, as OVS 3.1 writes them
OXM_BASIC: Final = 0x8000
OXM_EXPERIMENTER: Final = 0xFFFF

PC_PORT_DOWN: Final = 1
PS_LINK_DOWN: Final = 1
PS_LIVE: Final = 4
PORT_REASONS: Final = ("add", "delete", "modify")

CR_NOCHANGE: Final = 0
CR_EQUAL: Final = 1
CR_MASTER: Final = 2
CR_SLAVE: Final = 3

# ofp_error_type, and the codes we send or the fake switch needs
ET_HELLO_FAILED: Final = 0
ET_BAD_REQUEST: Final = 1
ET_BAD_ACTION: Final = 2
ET_BAD_INSTRUCTION: Final = 3
ET_BAD_MATCH: Final = 4
ET_FLOW_MOD_FAILED: Final = 5
ET_GROUP_MOD_FAILED: Final = 6
ET_METER_MOD_FAILED: Final = 12
ET_EXPERIMENTER: Final = 0xFFFF
HFC_INCOMPATIBLE: Final = 0
BMC_BAD_VALUE: Final = 7
BMC_BAD_MASK: Final = 8
BMC_BAD_PREREQ: Final = 9
BMC_BAD_FIELD: Final = 6
BMC_DUP_FIELD: Final = 10
BAC_BAD_TYPE: Final = 0
BAC_BAD_SET_TYPE: Final = 13
BAC_BAD_SET_LEN: Final = 14
BAC_BAD_SET_ARGUMENT: Final = 15
BIC_UNSUP_INST: Final = 1
GMFC_INVALID_GROUP: Final = 1
MMFC_BAD_BAND: Final = 8
