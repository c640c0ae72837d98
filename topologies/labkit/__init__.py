"""The lab's parts: fabric, controller process, traffic, failures, measurement, report. Standard library and Mininet only."""
